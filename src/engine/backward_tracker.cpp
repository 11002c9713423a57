#include "engine/backward_tracker.h"

#include <algorithm>
#include <utility>

#include "torch_seams/gradient_hooks.h"

namespace fsdp::engine {

void BackwardTracker::Callers::add(std::thread::id caller) {
  std::lock_guard lock(mutex_);
  callers_.push_back(caller);
}

void BackwardTracker::Callers::remove(std::thread::id caller) {
  std::lock_guard lock(mutex_);
  callers_.erase(std::find(callers_.begin(), callers_.end(), caller));
  removed_.notify_all();
}

void BackwardTracker::Callers::wait_for(std::thread::id caller) {
  std::unique_lock lock(mutex_);
  removed_.wait(lock, [&] { return std::find(callers_.begin(), callers_.end(), caller) == callers_.end(); });
}

BackwardTracker::Token::Token(int id_, std::thread::id caller_, std::shared_ptr<Callers> callers_)
    : id(id_), caller(caller_), callers(caller_ == thread ? nullptr : std::move(callers_)) {
  if (callers) callers->add(caller);
}

void BackwardTracker::Token::end() {
  if (auto left = std::exchange(callers, nullptr)) left->remove(caller);
}

bool BackwardTracker::changed() const {
  const int id = seams::current_backward();
  if (id == -1) last_outside_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  return id != last_seen_.load(std::memory_order_relaxed);
}

void BackwardTracker::observe(const std::shared_ptr<void>& owner) {
  int id = seams::current_backward();
  if (id == -1) callers_->wait_for(std::this_thread::get_id());
  if (clear_abandoned()) events_.abandoned();
  last_seen_ = id;
  if (id == -1) return;
  if (const std::shared_ptr<Token> token = open(id)) {
    seams::at_end_of_backward([this, owner, token] { finish(token); });
    events_.opened();
  }
}

std::shared_ptr<BackwardTracker::Token> BackwardTracker::open(int id) {
  base::MutexLock lock(mutex_);
  for (const std::weak_ptr<Token>& known : open_) {
    const std::shared_ptr<Token> token = known.lock();
    if (token && (token->id == id || token->thread == std::this_thread::get_id())) return nullptr;
  }
  auto token = std::make_shared<Token>(id, last_outside_, callers_);
  open_.push_back(token);
  return token;
}

bool BackwardTracker::is_outermost() {
  const int id = seams::current_backward();
  base::MutexLock lock(mutex_);
  return std::any_of(open_.begin(), open_.end(), [&](const std::weak_ptr<Token>& open) {
    const std::shared_ptr<Token> token = open.lock();
    return token && token->id == id;
  });
}

bool BackwardTracker::clear_abandoned() {
  base::MutexLock lock(mutex_);
  const auto abandoned = [](const std::weak_ptr<Token>& known) { return known.expired(); };
  return std::erase_if(open_, abandoned) > 0 && open_.empty();
}

void BackwardTracker::finish(const std::shared_ptr<Token>& token) {
  bool is_last = false;
  {
    base::MutexLock lock(mutex_);
    std::erase_if(open_, [&](const std::weak_ptr<Token>& known) { return known.expired() || known.lock() == token; });
    is_last = open_.empty();
  }
  token->end();
  last_seen_ = -1;
  if (is_last) events_.finished();
}

}  // namespace fsdp::engine
