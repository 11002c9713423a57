#include "comm/shm/shm_messages.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <utility>

#include "base/interruption.h"
#include "comm/checked/stopped_rank.h"
#include "comm/collective_header.h"
#include "comm/collective_identities.h"
#include "comm/failable.h"
#include "comm/fake_communicator.h"
#include "comm/group_family.h"
#include "comm/message_errors.h"
#include "comm/shm/race_notes.h"

namespace fsdp::comm {
namespace {

// A wait of one side for the other. Every failure ends the group on all ranks.
class ShmMessageWait {
 public:
  ShmMessageWait(ShmContext& context, const MessageErrors& errors, int peer)
      : context_(context), errors_(errors), peer_(peer) {}

  void until(const std::function<bool()>& there) {
    check_group_not_failed(*context_.host);
    context_.await(there, [&] { check_health(); });
  }
  [[noreturn]] void fail(const Failure& failure) const {
    context_.host->abort(failure.reason);
    failure.raise();
  }

 private:
  // Losses of third ranks do not matter to two.
  void check_health() {
    check_group_not_failed(*context_.host);
    for (const Loss& loss : losses_of(*context_.host)) {
      if (loss.rank == peer_) fail(errors_.lost(loss.why));
    }
    if (base::Interruption::is_requested()) fail(errors_.interrupted());
    const auto waited = ShmContext::Clock::now() - started_;
    stopped_.look(waited, context_.heaps, context_.names, [this] { return errors_.waits(); });
    if (waited >= context_.host->timeout()) fail(errors_.late(waited, context_.host->timeout()));
  }

  ShmContext& context_;
  const MessageErrors errors_;
  const int peer_;
  const ShmContext::Clock::time_point started_ = ShmContext::Clock::now();
  StoppedRankWarning stopped_;
};

class ShmReceive final : public Work {
 public:
  ShmReceive(std::shared_ptr<ShmContext> context, std::shared_ptr<ShmChannels> channels, const at::Tensor& output,
             CollectiveIdentity identity, int from, uint64_t number)
      : context_(std::move(context)),
        channels_(std::move(channels)),
        output_(output),
        identity_(std::move(identity)),
        from_(from),
        number_(number) {}
  ~ShmReceive() override {
    if (output_.defined()) take();
  }

  void wait() override {
    TORCH_CHECK(output_.defined(), "a message can be waited for only once");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    settle_family_of(*context_->host);  // [Note: waiting for a message]
    const at::Tensor output = std::exchange(output_, {});
    ShmMessageWait wait(*context_, errors(), from_);
    wait.until([this] { return channels_->find(from_, number_) != nullptr; });
    const ShmChannels::Letter& letter = *channels_->find(from_, number_);
    if (const Header header = read_header(letter.header); header.identity_hash != identity_.hash()) {
      wait.fail(errors().differs(header));
    }
    if (output.numel() > 0) copy_payload(output, letter.payload);
    take();
  }

 private:
  void copy_payload(const at::Tensor& output, int64_t place) const {
    char* begin = context_->heaps[static_cast<size_t>(from_)]->data() + place;
    const at::Tensor payload = at::from_blob(begin, output.sizes(), output.scalar_type());
    note_read(payload);
    output.copy_(payload);
  }
  MessageErrors errors() const { return {identity_, number_, /*sends=*/false}; }
  // The sender may sleep until it has this.
  void take() {
    channels_->take(from_, number_);
    context_->board->ring();
  }

  const std::shared_ptr<ShmContext> context_;
  const std::shared_ptr<ShmChannels> channels_;
  at::Tensor output_;
  const CollectiveIdentity identity_;
  const int from_;
  const uint64_t number_;
};

// A message whose tensor the receiver reads in place.
class ShmSend final : public Work {
 public:
  ShmSend(std::shared_ptr<ShmContext> context, std::shared_ptr<ShmChannels> channels, CollectiveIdentity identity,
          int to, uint64_t number)
      : context_(std::move(context)),
        channels_(std::move(channels)),
        identity_(std::move(identity)),
        to_(to),
        number_(number) {}

  void wait() override {
    settle_family_of(*context_->host);
    ShmMessageWait(*context_, {identity_, number_, /*sends=*/true}, to_).until([this] {
      return channels_->is_taken(to_, number_);
    });
  }

 private:
  const std::shared_ptr<ShmContext> context_;
  const std::shared_ptr<ShmChannels> channels_;
  const CollectiveIdentity identity_;
  const int to_;
  const uint64_t number_;
};

}  // namespace

ShmMessages::ShmMessages(std::shared_ptr<ShmContext> context, std::unique_ptr<ShmChannels> channels)
    : context_(std::move(context)), channels_(std::move(channels)), expected_(context_->names.size()) {}

std::unique_ptr<Work> ShmMessages::send(const at::Tensor& tensor, int to, const CollectiveId& id) {
  const bool in_place = tensor.numel() > 0 && context_->heap->place_of(tensor).has_value();
  at::Tensor payload;
  if (in_place) {
    payload = tensor;
  } else if (tensor.numel() > 0) {
    payload = context_->heap->take(static_cast<int64_t>(tensor.nbytes()));
    payload.view(tensor.scalar_type()).copy_(tensor.view({-1}));
  }
  if (payload.defined()) note_write(payload);
  const CollectiveIdentity identity = identify_message(tensor, context_->own_name(), context_->name_of(to), id);
  const uint64_t number = channels_->appended(to);
  char header[kHeaderBytes];
  write_header(header, number, identity, nullptr);
  channels_->append(to, header, payload);
  context_->board->ring();
  if (!in_place) return make_done_work();
  return std::make_unique<ShmSend>(context_, channels_, identity, to, number);
}

std::unique_ptr<Work> ShmMessages::recv(const at::Tensor& output, int from, const CollectiveId& id) {
  return std::make_unique<ShmReceive>(context_, channels_, output,
                                      identify_message(output, context_->name_of(from), context_->own_name(), id), from,
                                      expected_[static_cast<size_t>(from)]++);
}

}  // namespace fsdp::comm
