#include "comm/exchange.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace fsdp::comm {
namespace {

constexpr int kLongFlagsStep = -1;

}  // namespace

Exchange::Exchange(std::shared_ptr<ExchangeContext> context, CollectiveIdentity identity, std::vector<uint64_t>* flags)
    : context_(std::move(context)),
      transport_(*context_->transport),
      identity_(std::move(identity)),
      identity_hash_(identity_.hash()),
      sequence_(context_->next_sequence),
      flags_(flags) {
  transport_.check_not_failed();
  try {
    transport_.check_complete();
  } catch (const PeerLost& error) {
    fail_lost(error);
  }
  ++context_->next_sequence;
  post_headers();
  post_long_flags();
}

Exchange::~Exchange() { release_messages(); }

void Exchange::release_messages() {
  std::vector<std::unique_ptr<Message>> messages = std::move(received_headers_);
  for (auto& message : sent_) messages.push_back(std::move(message));
  for (auto& receipt : received_) messages.push_back(std::move(receipt.message));
  transport_.release(std::move(messages));
  received_headers_.clear();
  sent_.clear();
  received_.clear();
}

int Exchange::rank() const { return transport_.rank(); }
int Exchange::size() const { return transport_.size(); }

at::Tensor Exchange::header_row(int rank) const { return headers_.narrow(0, rank * kHeaderBytes, kHeaderBytes); }

at::Tensor Exchange::long_flags_row(int rank) const {
  const auto bytes = static_cast<int64_t>((identity_.flag_words - kInlineFlagWords) * sizeof(uint64_t));
  return long_flags_.narrow(0, rank * bytes, bytes);
}

void Exchange::post_headers() {
  headers_ = staging(size() * kHeaderBytes);
  const auto own = header_row(rank());
  write_header(static_cast<char*>(own.mutable_data_ptr()), sequence_, identity_,
               flags_ == nullptr ? nullptr : flags_->data());
  received_headers_.resize(static_cast<size_t>(size()));
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    received_headers_[static_cast<size_t>(peer)] = transport_.receive(peer, header_tag(sequence_), header_row(peer));
  }
  for (int step = 1; step < size(); ++step) {
    sent_.push_back(transport_.send((rank() + step) % size(), header_tag(sequence_), own));
  }
}

void Exchange::post_long_flags() {
  if (identity_.flag_words <= kInlineFlagWords) return;
  const size_t words = identity_.flag_words - kInlineFlagWords;
  long_flags_ = staging(static_cast<int64_t>(words * sizeof(uint64_t)) * size());
  const auto own = long_flags_row(rank());
  std::memcpy(own.mutable_data_ptr(), flags_->data() + kInlineFlagWords, words * sizeof(uint64_t));
  const int tag = payload_tag(sequence_, identity_hash_, kLongFlagsStep, words * sizeof(uint64_t));
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    received_.push_back({kLongFlagsStep, transport_.receive(peer, tag, long_flags_row(peer))});
    sent_.push_back(transport_.send(peer, tag, own));
  }
}

void Exchange::send(int peer, const at::Tensor& payload, int step) {
  if (payload.numel() == 0) return;
  sent_.push_back(transport_.send(peer, tag_of(payload, step), payload));
  context_->payload_bytes_sent[static_cast<size_t>(peer)] += payload.nbytes();
}

void Exchange::receive(int peer, const at::Tensor& payload, int step) {
  if (payload.numel() == 0) return;
  received_.push_back({step, transport_.receive(peer, tag_of(payload, step), payload)});
}

at::Tensor Exchange::staging(int64_t bytes) {
  buffers_.push_back(context_->buffers.take(bytes));
  return buffers_.back().narrow(0, 0, bytes);
}

void Exchange::start_clock() {
  if (started_ == GlooTransport::Clock::time_point{}) started_ = GlooTransport::Clock::now();
}

void Exchange::agree() {
  transport_.check_not_failed();
  start_clock();
  if (!numels_.empty()) return;
  std::vector<Header> headers;
  for (int peer = 0; peer < size(); ++peer) {
    auto& message = received_headers_[static_cast<size_t>(peer)];
    if (message) wait_for(*message);
    headers.push_back(read_header(static_cast<const char*>(header_row(peer).const_data_ptr())));
    check_agrees(headers.back(), peer);
  }
  for (const auto& header : headers) numels_.push_back(header.numel);
  if (flags_ != nullptr) merge_flags(headers);
}

void Exchange::check_agrees(const Header& other, int peer) const {
  if (other.identity_hash == identity_hash_ && other.sequence == sequence_) return;
  fail(errors().differs(other, peer));
}

void Exchange::merge_flags(const std::vector<Header>& headers) {
  for (const auto& header : headers) {
    for (size_t word = 0; word < header.flags.size(); ++word) (*flags_)[word] |= header.flags[word];
  }
}

void Exchange::merge_long_flags() {
  if (!long_flags_.defined()) return;
  for (int peer = 0; peer < size(); ++peer) {
    const auto row = long_flags_row(peer);
    const auto* words = static_cast<const uint64_t*>(row.const_data_ptr());
    for (size_t word = kInlineFlagWords; word < identity_.flag_words; ++word) {
      (*flags_)[word] |= words[word - kInlineFlagWords];
    }
  }
}

uint64_t Exchange::flag_word_of(int peer, size_t index) {
  if (index < kInlineFlagWords) {
    return read_header(static_cast<const char*>(header_row(peer).const_data_ptr())).flags[index];
  }
  wait_received(kLongFlagsStep);
  const auto row = long_flags_row(peer);
  return static_cast<const uint64_t*>(row.const_data_ptr())[index - kInlineFlagWords];
}

void Exchange::check_counts(const std::vector<int64_t>& expected) {
  for (int peer = 0; peer < size(); ++peer) {
    const auto sent = static_cast<int64_t>(flag_word_of(peer, static_cast<size_t>(rank())));
    if (sent == expected[static_cast<size_t>(peer)]) continue;
    fail(errors().count_differs(peer, sent, rank(), expected[static_cast<size_t>(peer)]));
  }
}

void Exchange::wait_received(int step) {
  for (auto& receipt : received_) {
    if (receipt.step <= step) wait_for(*receipt.message);
  }
}

void Exchange::finish() {
  for (auto& message : sent_) wait_for(*message);
  merge_long_flags();
  release_messages();
  for (auto& buffer : buffers_) context_->buffers.release(std::move(buffer));
  buffers_.clear();
}

void Exchange::wait_for(Message& message) {
  try {
    while (!transport_.wait(message, started_ + transport_.timeout(), known_losses_)) settle_losses();
  } catch (const PeerLost& error) {
    fail_lost(error);
  } catch (const PeerLate& error) {
    fail_late(error);
  } catch (const PeerWaitInterrupted& error) {
    fail_interrupted(error);
  }
}

// A lost rank may have done its part of this collective before. If so, its loss does not matter here.
void Exchange::settle_losses() {
  const auto losses = transport_.losses();
  for (size_t loss = std::exchange(known_losses_, losses.size()); loss < losses.size(); ++loss) {
    settle_loss(losses[loss]);
  }
}

void Exchange::settle_loss(int peer) {
  const auto must_be_done = [&](Message* message) {
    if (message == nullptr || message->peer() != peer) return;
    transport_.wait(*message, started_ + transport_.timeout(), static_cast<size_t>(size()));
  };
  if (auto& header = received_headers_[static_cast<size_t>(peer)]; header && numels_.empty()) {
    must_be_done(header.get());
    check_agrees(read_header(static_cast<const char*>(header_row(peer).const_data_ptr())), peer);
  }
  for (auto& receipt : received_) must_be_done(receipt.message.get());
  for (auto& message : sent_) must_be_done(message.get());
}

void Exchange::fail_lost(const PeerLost& error) const { fail(errors().lost(error.peer(), error.what())); }

void Exchange::fail_late(const PeerLate& error) const {
  fail(errors().late(error.peer(), GlooTransport::Clock::now() - started_, transport_.timeout()));
}

void Exchange::fail_interrupted(const PeerWaitInterrupted& error) const { fail(errors().interrupted(error.peer())); }

void Exchange::fail(const Failure& failure) const {
  context_->family->fail(transport_, failure.reason);
  failure.raise();
}

}  // namespace fsdp::comm
