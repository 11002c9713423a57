#include "comm/pending_collective.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <limits>
#include <utility>

namespace fsdp::comm {
namespace {

class PendingWork final : public Work {
 public:
  PendingWork(std::shared_ptr<PendingCollective> collective, std::shared_ptr<Advancing> advancing)
      : collective_(std::move(collective)), advancing_(std::move(advancing)) {}
  ~PendingWork() override {
    if (!collective_) return;
    base::MutexLock use(advancing_->in_use);
    collective_->discard_result();
    collective_.reset();
  }

  void wait() override {
    TORCH_CHECK(collective_ != nullptr, "a collective can be waited for only once");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    base::MutexLock use(advancing_->in_use);
    const auto collective = std::exchange(collective_, nullptr);
    advancing_->finish(*collective);
  }

  void advance() override {
    TORCH_CHECK(collective_ != nullptr, "a collective that was waited for cannot be advanced");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    base::MutexLock use(advancing_->in_use);
    advancing_->advance_up_to(collective_->sequence());
  }

 private:
  std::shared_ptr<PendingCollective> collective_;
  std::shared_ptr<Advancing> advancing_;
};

}  // namespace

void Advancing::advance_up_to(uint64_t sequence) {
  while (!queue_.empty()) {
    const auto collective = queue_.front().collective.lock();
    if (collective && collective->sequence() > sequence) return;
    queue_.pop_front();
    if (collective) collective->advance();
  }
}

void Advancing::finish(PendingCollective& collective) {
  advance_up_to(collective.sequence());
  collective.finish();
}

void Advancing::settle() {
  if (!in_use.try_lock()) return;
  base::MutexLock use(in_use, std::adopt_lock);
  advance_all();
}

void Advancing::advance_all() { advance_up_to(std::numeric_limits<uint64_t>::max()); }

std::unique_ptr<Work> make_pending_work(std::shared_ptr<PendingCollective> collective,
                                        std::shared_ptr<Advancing> advancing) {
  return std::make_unique<PendingWork>(std::move(collective), std::move(advancing));
}

}  // namespace fsdp::comm
