#include "comm/nccl/nccl_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "base/device_stream.h"
#include "comm/failure.h"

namespace fsdp::comm {
namespace {

class NcclWork final : public Work {
 public:
  NcclWork(std::shared_ptr<NcclContext> context, const CollectiveIdentity& identity,
           std::shared_ptr<HostAgreement::Exchange> exchange, std::vector<uint64_t>* flags)
      : context_(std::move(context)),
        kind_(identity.kind),
        id_(identity.id),
        exchange_(std::move(exchange)),
        flags_(flags) {
    done_.record_current(context_->group->setup().device);
    context_->group->note_issued();
  }
  ~NcclWork() override {
    if (context_) done_.block_current();
  }

  void wait() override {
    TORCH_CHECK(context_ != nullptr, "a collective can be waited for only once");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto context = std::exchange(context_, nullptr);
    done_.block_current();
    if (exchange_) finish_exchange(*context);
    context->group->check({to_string(kind_), id_});
  }

 private:
  void finish_exchange(NcclContext& context) {
    try {
      context.agreement->finish(exchange_, flags_);
    } catch (const std::exception& error) {
      context.group->fail(Failure::of(error));
      throw;
    }
  }

  std::shared_ptr<NcclContext> context_;
  CollectiveKind kind_;
  CollectiveId id_;
  std::shared_ptr<HostAgreement::Exchange> exchange_;
  std::vector<uint64_t>* flags_;
  base::DeviceEvent done_;
};

class NcclMessageWork final : public Work {
 public:
  NcclMessageWork(std::shared_ptr<NcclContext> context, CollectiveId id, std::unique_ptr<Work> comparison)
      : context_(std::move(context)), id_(std::move(id)), comparison_(std::move(comparison)) {
    done_.record_current(context_->group->setup().device);
    context_->group->note_issued();
  }
  ~NcclMessageWork() override {
    if (context_) done_.block_current();
  }

  void wait() override {
    TORCH_CHECK(context_ != nullptr, "a message can be waited for only once");
    const auto context = std::exchange(context_, nullptr);
    done_.block_current();
    try {
      if (comparison_) comparison_->wait();
    } catch (const std::exception& error) {
      context->group->fail(Failure::of(error));
      throw;
    }
    context->group->check({to_string(CollectiveKind::kMessage), id_});
  }

 private:
  std::shared_ptr<NcclContext> context_;
  CollectiveId id_;
  std::unique_ptr<Work> comparison_;
  base::DeviceEvent done_;
};

}  // namespace

std::unique_ptr<Work> make_nccl_work(std::shared_ptr<NcclContext> context, const CollectiveIdentity& identity,
                                     std::shared_ptr<HostAgreement::Exchange> exchange, std::vector<uint64_t>* flags) {
  return std::make_unique<NcclWork>(std::move(context), identity, std::move(exchange), flags);
}

std::unique_ptr<Work> make_nccl_message_work(std::shared_ptr<NcclContext> context, CollectiveId id,
                                             std::unique_ptr<Work> comparison) {
  return std::make_unique<NcclMessageWork>(std::move(context), std::move(id), std::move(comparison));
}

}  // namespace fsdp::comm
