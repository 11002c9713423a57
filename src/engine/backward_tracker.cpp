#include "engine/backward_tracker.h"

#include <algorithm>

#include "torch_seams/gradient_hooks.h"

namespace fsdp {

bool BackwardTracker::changed() const {
  return seams::current_backward() != last_seen_.load(std::memory_order_relaxed);
}

void BackwardTracker::observe(const std::shared_ptr<void>& owner) {
  int id = seams::current_backward();
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
      return;  // known, or inside a known one
    }
  }
  auto token = std::make_shared<Token>(Token{id, std::this_thread::get_id()});
  open_.push_back(token);
  seams::at_end_of_backward([this, owner, token] { finish(token); });
  events_.opened();
}

bool BackwardTracker::forget_abandoned() {
  return std::erase_if(open_, [](const std::weak_ptr<Token>& open) { return open.expired(); }) > 0;
}

void BackwardTracker::finish(const std::shared_ptr<Token>& token) {
  std::lock_guard lock(mutex_);
  std::erase_if(open_, [&](const std::weak_ptr<Token>& open) { return open.lock() == token; });
  forget_abandoned();
  last_seen_ = -1;
  if (open_.empty()) {
    events_.finished();
  }
}

}  // namespace fsdp
