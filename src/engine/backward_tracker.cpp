#include "engine/backward_tracker.h"

#include <algorithm>
#include <utility>

#include "torch_seams/gradient_hooks.h"

namespace fsdp {

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
  if (callers) {
    callers->add(caller);
  }
}

void BackwardTracker::Token::end() {
  if (auto left = std::exchange(callers, nullptr)) {
    left->remove(caller);
  }
}

bool BackwardTracker::changed() const {
  const int id = seams::current_backward();
  if (id == -1) {
    last_outside_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  return id != last_seen_.load(std::memory_order_relaxed);
}

void BackwardTracker::observe(const std::shared_ptr<void>& owner) {
  int id = seams::current_backward();
  if (id == -1) {
    callers_->wait_for(std::this_thread::get_id());
  }
  std::lock_guard lock(mutex_);
  if (forget_abandoned() && open_.empty()) {
    events_.abandoned();
  }
  last_seen_ = id;
  if (id == -1) {
    return;
  }
  for (const std::weak_ptr<Token>& open : open_) {
    std::shared_ptr<Token> token = open.lock();
    if (token && (token->id == id || token->thread == std::this_thread::get_id())) {
      return;  // a known pass, or inside one
    }
  }
  auto token = std::make_shared<Token>(id, last_outside_, callers_);
  open_.push_back(token);
  seams::at_end_of_backward([this, owner, token] { finish(token); });
  events_.opened();
}

bool BackwardTracker::is_outermost() {
  const int id = seams::current_backward();
  std::lock_guard lock(mutex_);
  return std::any_of(open_.begin(), open_.end(), [&](const std::weak_ptr<Token>& open) {
    const std::shared_ptr<Token> token = open.lock();
    return token && token->id == id;
  });
}

bool BackwardTracker::forget_abandoned() {
  return std::erase_if(open_, [](const std::weak_ptr<Token>& open) { return open.expired(); }) > 0;
}

void BackwardTracker::finish(const std::shared_ptr<Token>& token) {
  std::lock_guard lock(mutex_);
  std::erase_if(open_, [&](const std::weak_ptr<Token>& open) { return open.lock() == token; });
  token->end();
  forget_abandoned();
  last_seen_ = -1;
  if (open_.empty()) {
    events_.finished();
  }
}

}  // namespace fsdp
