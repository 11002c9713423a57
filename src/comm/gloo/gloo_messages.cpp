#include "comm/gloo/gloo_messages.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "comm/collective_header.h"
#include "comm/collective_identities.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/message_errors.h"

namespace fsdp::comm {
namespace {

using Clock = GlooTransport::Clock;

// A receipt is a byte that is not zero, in a line of memory of its own.
constexpr int64_t kReceiptBytes = 64;
// How long a group that is destroyed waits until its messages are received.
constexpr auto kFarewell = std::chrono::milliseconds(10'000);

}  // namespace

// The common part of both sides of a message: its header, its payload, its receipt, and the wait for each.
class GlooMessageSide {
 public:
  GlooMessageSide(std::shared_ptr<ExchangeContext> context, CollectiveIdentity identity, int peer, uint64_t number,
                  bool sends)
      : context_(std::move(context)),
        identity_(std::move(identity)),
        identity_hash_(identity_.hash()),
        peer_(peer),
        number_(number),
        sends_(sends),
        memory_(at::zeros({kHeaderBytes + kReceiptBytes}, at::kByte)) {}
  GlooMessageSide(const GlooMessageSide&) = delete;
  GlooMessageSide& operator=(const GlooMessageSide&) = delete;
  // Leaves messages that are not done to the transport.
  virtual ~GlooMessageSide() {
    std::vector<std::unique_ptr<Message>> messages;
    for (std::unique_ptr<Message>* one : {&header_, &payload_, &receipt_}) {
      if (*one) messages.push_back(std::move(*one));
    }
    context_->transport->release(std::move(messages));
  }

  // Whether the receiver has the message, as far as this rank knows.
  bool is_over() const { return *receipt() != 0; }
  // Waits until the receiver has the message and nothing uses this memory any more.
  void finish() {
    for (auto* one : {&receipt_, &header_, &payload_}) wait_for(*one);
  }
  // The same, but failures do not matter any more. Returns whether it succeeded.
  bool end(Clock::time_point deadline) noexcept {
    try {
      for (auto* one : {&receipt_, &header_, &payload_}) await(*one, deadline);
      return true;
    } catch (const std::exception&) {
      return false;  // the destructor leaves the message to the transport
    }
  }

 protected:
  GlooTransport& transport() { return *context_->transport; }
  at::Tensor header_memory() const { return memory_.narrow(0, 0, kHeaderBytes); }
  at::Tensor receipt_memory() const { return memory_.narrow(0, kHeaderBytes, kReceiptBytes); }
  // Gloo's thread writes the receipt of a message that this rank has sent.
  volatile char* receipt() const { return static_cast<volatile char*>(receipt_memory().mutable_data_ptr()); }
  MessageErrors errors() const { return {identity_, number_, sends_}; }

  // Losses of third ranks do not matter to two.
  void await(const std::unique_ptr<Message>& message, Clock::time_point deadline) {
    if (message) transport().wait(*message, deadline, static_cast<size_t>(transport().size()));
  }
  void wait_for(const std::unique_ptr<Message>& message) {
    if (started_ == Clock::time_point{}) started_ = Clock::now();
    try {
      await(message, started_ + transport().timeout());
    } catch (const PeerLost& error) {
      fail(errors().lost(error.what()));
    } catch (const PeerLate&) {
      fail(errors().late(Clock::now() - started_, transport().timeout()));
    } catch (const PeerWaitInterrupted&) {
      fail(errors().interrupted());
    }
  }
  [[noreturn]] void fail(const Failure& failure) {
    context_->family->fail(transport(), failure.reason);
    failure.raise();
  }

  const std::shared_ptr<ExchangeContext> context_;
  const CollectiveIdentity identity_;
  const uint64_t identity_hash_;
  const int peer_;
  const uint64_t number_;
  const bool sends_;
  at::Tensor memory_;
  std::unique_ptr<Message> header_;
  std::unique_ptr<Message> payload_;  // null if it is empty
  std::unique_ptr<Message> receipt_;
  Clock::time_point started_{};
};

class GlooSent final : public GlooMessageSide {
 public:
  GlooSent(std::shared_ptr<ExchangeContext> context, const at::Tensor& tensor, CollectiveIdentity identity, int to,
           uint64_t number)
      : GlooMessageSide(std::move(context), std::move(identity), to, number, /*sends=*/true) {
    write_header(static_cast<char*>(memory_.mutable_data_ptr()), number_, identity_, nullptr);
    receipt_ = transport().receive(peer_, message_receipt_tag(number_), receipt_memory());
    header_ = transport().send(peer_, message_header_tag(number_), header_memory());
    if (tensor.numel() > 0) {
      payload_ = transport().send(peer_, message_payload_tag(number_, identity_hash_), tensor);
    }
  }
};

class GlooReceived final : public GlooMessageSide {
 public:
  GlooReceived(std::shared_ptr<ExchangeContext> context, const at::Tensor& output, CollectiveIdentity identity,
               int from, uint64_t number)
      : GlooMessageSide(std::move(context), std::move(identity), from, number, /*sends=*/false) {
    header_ = transport().receive(peer_, message_header_tag(number_), header_memory());
    if (output.numel() > 0) {
      payload_ = transport().receive(peer_, message_payload_tag(number_, identity_hash_), output);
    }
  }

  void receive() {
    wait_for(header_);
    const Header header = read_header(static_cast<const char*>(header_memory().const_data_ptr()));
    if (header.identity_hash != identity_hash_) fail(errors().differs(header));
    wait_for(payload_);
    *receipt() = 1;
    receipt_ = transport().send(peer_, message_receipt_tag(number_), receipt_memory());
  }
};

namespace {

class GlooMessageWork final : public Work {
 public:
  // `end`: waits for the message.
  GlooMessageWork(std::shared_ptr<ExchangeContext> context, std::function<void()> end)
      : context_(std::move(context)), end_(std::move(end)) {}

  void wait() override {
    TORCH_CHECK(end_ != nullptr, "a message can be waited for only once");
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    context_->transport->check_not_failed();
    context_->family->settle();  // [Note: waiting for a message]
    std::exchange(end_, nullptr)();
  }

 private:
  std::shared_ptr<ExchangeContext> context_;
  std::function<void()> end_;
};

// Ends the messages that both ranks are done with.
template <typename Side>
void end_those_over(std::deque<std::shared_ptr<Side>>& sides) {
  std::erase_if(sides, [](const std::shared_ptr<Side>& side) {
    if (!side->is_over()) return false;
    side->end(Clock::now() + kFarewell);
    return true;
  });
}

}  // namespace

GlooMessages::GlooMessages(std::shared_ptr<ExchangeContext> context)
    : context_(std::move(context)), sent_count_(context_->names.size()), received_count_(context_->names.size()) {}

// Connections end with this object, so it waits for receivers. But they may never receive: if two ranks leave without
// having received each other's messages, each would wait for the other.
GlooMessages::~GlooMessages() {
  const auto deadline = Clock::now() + std::min(kFarewell, context_->transport->timeout());
  for (const auto& one : sent_) {
    if (!one->end(deadline)) return;
  }
}

int GlooMessages::name_of(int rank) const { return context_->names[static_cast<size_t>(rank)]; }
int GlooMessages::own_name() const { return name_of(context_->transport->rank()); }

void GlooMessages::free_received() {
  end_those_over(sent_);
  end_those_over(received_);
}

std::unique_ptr<Work> GlooMessages::send(const at::Tensor& tensor, int to, const CollectiveId& id) {
  free_received();
  context_->payload_bytes_sent[static_cast<size_t>(to)] += tensor.nbytes();
  sent_.push_back(std::make_shared<GlooSent>(context_, tensor, identify_message(tensor, own_name(), name_of(to), id),
                                             to, sent_count_[static_cast<size_t>(to)]++));
  return std::make_unique<GlooMessageWork>(context_, [sent = sent_.back()] { sent->finish(); });
}

std::unique_ptr<Work> GlooMessages::recv(const at::Tensor& output, int from, const CollectiveId& id) {
  free_received();
  received_.push_back(std::make_shared<GlooReceived>(context_, output,
                                                     identify_message(output, name_of(from), own_name(), id), from,
                                                     received_count_[static_cast<size_t>(from)]++));
  return std::make_unique<GlooMessageWork>(context_, [received = received_.back()] { received->receive(); });
}

}  // namespace fsdp::comm
