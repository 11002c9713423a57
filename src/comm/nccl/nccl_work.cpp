#include "comm/nccl/nccl_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <exception>
#include <utility>

#include "base/device_stream.h"
#include "comm/failure.h"

namespace fsdp::comm {
namespace {

// A collective or message. Must be constructed right after the kernels were enqueued on the current
// stream.
class NcclIssued : public Work {
 public:
  NcclIssued(std::shared_ptr<NcclContext> context, CollectiveKind kind, CollectiveId id)
      : context_(std::move(context)), kind_(kind), id_(std::move(id)) {
    done_.record_current(context_->group->setup().device);
    context_->group->note_issued();
  }
  ~NcclIssued() override {
    if (context_) done_.block_current();
  }

  void wait() final {
    TORCH_CHECK(context_ != nullptr, kind_ == CollectiveKind::kMessage ? "a message" : "a collective",
                " can be waited for only once");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto context = std::exchange(context_, nullptr);
    done_.block_current();
    try {
      finish_on_host(*context);
    } catch (const std::exception& error) {
      context->group->fail(Failure::of(error));
      throw;
    }
    context->group->check({to_string(kind_), id_});
  }

 private:
  // Waits for the hosts, if they compare or exchange anything.
  virtual void finish_on_host(NcclContext& context) = 0;

  std::shared_ptr<NcclContext> context_;  // null once waited for
  CollectiveKind kind_;
  CollectiveId id_;
  base::DeviceEvent done_;
};

class NcclWork final : public NcclIssued {
 public:
  NcclWork(std::shared_ptr<NcclContext> context, const CollectiveIdentity& identity,
           std::shared_ptr<HostAgreement::Exchange> exchange, std::vector<uint64_t>* flags)
      : NcclIssued(std::move(context), identity.kind, identity.id), exchange_(std::move(exchange)), flags_(flags) {}

 private:
  void finish_on_host(NcclContext& context) override {
    if (exchange_) context.agreement->finish(exchange_, flags_);
  }

  std::shared_ptr<HostAgreement::Exchange> exchange_;
  std::vector<uint64_t>* flags_;
};

class NcclMessageWork final : public NcclIssued {
 public:
  NcclMessageWork(std::shared_ptr<NcclContext> context, CollectiveId id, std::unique_ptr<Work> comparison)
      : NcclIssued(std::move(context), CollectiveKind::kMessage, std::move(id)), comparison_(std::move(comparison)) {}

 private:
  void finish_on_host(NcclContext& /*context*/) override {
    if (comparison_) comparison_->wait();
  }

  std::unique_ptr<Work> comparison_;
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
