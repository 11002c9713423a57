#include "comm/shm/shm_exchange.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/interruption.h"
#include "comm/failable.h"
#include "comm/shm/race_notes.h"

namespace fsdp::comm {
namespace {

// How long a rank sleeps before it checks whether the others are still alive.
constexpr auto kLook = std::chrono::milliseconds(20);

}  // namespace

void ShmContext::finish(uint64_t sequence) {
  finished_ahead.insert(sequence);
  const uint64_t before = finished_below;
  while (finished_ahead.erase(finished_below) > 0) ++finished_below;
  if (finished_below > before) board->finish_below(finished_below);
}

void ShmContext::await(const std::function<bool()>& there, const std::function<void()>& check) const {
  for (;;) {
    const uint32_t seen = board->changes();
    if (there()) return;
    check();
    if (there()) return;
    board->await_change(seen, kLook);
  }
}

ShmExchange::ShmExchange(std::shared_ptr<ShmContext> context, CollectiveIdentity identity, const Payload& payload,
                         std::vector<uint64_t>* flags)
    : context_(std::move(context)), identity_(std::move(identity)), sequence_(context_->next_sequence), flags_(flags) {
  check_group_not_failed(*context_->host);
  for (int peer = 0; peer < size(); ++peer) await(peer, [&] { return context_->board->has_room(peer, sequence_); });
  started_ = {};
  stopped_ = {};
  ++context_->next_sequence;
  post(payload);
}

ShmExchange::~ShmExchange() {
  if (!finished_) context_->finish(sequence_);
}

void ShmExchange::post(const Payload& payload) {
  ShmBoard::Post& own = context_->board->own(sequence_);
  write_header(own.header, sequence_, identity_, flags_ == nullptr ? nullptr : flags_->data());
  own.payload = own.flags = own.second = ShmBoard::kNowhere;
  if (const at::Tensor& tensor = payload.tensor; tensor.defined() && tensor.numel() > 0) {
    const at::Tensor block = payload.in_place && context_->heap->place_of(tensor) ? tensor : copied(tensor);
    note_write(block);
    own.payload = keep(block);
  }
  if (identity_.flag_words > kInlineFlagWords) {
    const size_t bytes = (identity_.flag_words - kInlineFlagWords) * sizeof(uint64_t);
    const at::Tensor block = context_->heap->take(static_cast<int64_t>(bytes));
    std::memcpy(block.mutable_data_ptr(), flags_->data() + kInlineFlagWords, bytes);
    own.flags = keep(block);
  }
  context_->board->publish(sequence_, 0);
}

at::Tensor ShmExchange::copied(const at::Tensor& tensor) const {
  const at::Tensor block = context_->heap->take(static_cast<int64_t>(tensor.nbytes()));
  block.view(tensor.scalar_type()).copy_(tensor);
  return block;
}

// Keeps the block unchanged until all ranks have finished the collective.
int64_t ShmExchange::keep(const at::Tensor& block) {
  context_->heap->hold(block,
                       [board = context_->board, sequence = sequence_] { return board->all_finished(sequence); });
  blocks_.push_back(block);
  return *context_->heap->place_of(block);
}

// ---------------------------------------------------------------- waiting

void ShmExchange::await(int peer, const std::function<bool()>& there) {
  context_->await(there, [&] {
    if (started_ == Clock::time_point{}) started_ = Clock::now();
    check_health(peer);
  });
}

// A lost rank may have done its part of this collective before. If so, its loss does not matter here.
void ShmExchange::check_health(int peer) {
  check_group_not_failed(*context_->host);
  for (const Loss& loss : losses_of(*context_->host)) {
    if (!has_posted_all(loss.rank)) fail(errors().lost(loss.rank, loss.why));
  }
  if (base::Interruption::is_requested()) fail(errors().interrupted(peer));
  const auto waited = Clock::now() - started_;
  stopped_.look(waited, context_->heaps, context_->names, [this] {
    return c10::str("rank ", context_->names[static_cast<size_t>(rank())], " waits in its ", identity_.describe());
  });
  if (waited >= context_->host->timeout()) fail(errors().late(peer, waited, context_->host->timeout()));
}

bool ShmExchange::has_posted_all(int peer) const {
  const int last = identity_.kind == CollectiveKind::kAllReduce ? 1 : 0;
  return context_->board->of(peer, sequence_, last) != nullptr;
}

const ShmBoard::Post& ShmExchange::await_post(int peer, int step) {
  await(peer, [&] { return context_->board->of(peer, sequence_, step) != nullptr; });
  return *context_->board->of(peer, sequence_, step);
}

void ShmExchange::agree() {
  check_group_not_failed(*context_->host);
  if (!numels_.empty()) return;
  const uint64_t own_hash = identity_.hash();
  for (int peer = 0; peer < size(); ++peer) {
    const Header header = read_header(await_post(peer, 0).header);
    if (header.identity_hash != own_hash || header.sequence != sequence_) fail(errors().differs(header, peer));
    numels_.push_back(header.numel);
    if (flags_ != nullptr) merge_flags(header, peer);
  }
}

void ShmExchange::merge_flags(const Header& header, int peer) {
  for (size_t word = 0; word < header.flags.size(); ++word) (*flags_)[word] |= header.flags[word];
  for (size_t word = kInlineFlagWords; word < identity_.flag_words; ++word) (*flags_)[word] |= flag_word_of(peer, word);
}

uint64_t ShmExchange::flag_word_of(int peer, size_t index) const {
  const ShmBoard::Post& post = *context_->board->of(peer, sequence_, 0);
  if (index < kInlineFlagWords) return read_header(post.header).flags[index];
  uint64_t word = 0;
  const auto offset = static_cast<int64_t>((index - kInlineFlagWords) * sizeof(word));
  std::memcpy(&word, context_->heaps[static_cast<size_t>(peer)]->data() + post.flags + offset, sizeof(word));
  return word;
}

void ShmExchange::check_counts() const {
  for (int sender = 0; sender < size(); ++sender) {
    for (int receiver = 0; receiver < size(); ++receiver) {
      const auto sent = static_cast<int64_t>(flag_word_of(sender, static_cast<size_t>(receiver)));
      const auto expected =
          static_cast<int64_t>(flag_word_of(receiver, static_cast<size_t>(size()) + static_cast<size_t>(sender)));
      if (sent != expected) fail(errors().count_differs(sender, sent, receiver, expected));
    }
  }
}

// ---------------------------------------------------------------- payloads

at::Tensor ShmExchange::in_heap(int peer, int64_t place, int64_t begin, int64_t numel, at::ScalarType dtype) const {
  char* first = context_->heaps[static_cast<size_t>(peer)]->data() + place +
                begin * static_cast<int64_t>(c10::elementSize(dtype));
  return at::from_blob(first, {numel}, dtype);
}

at::Tensor ShmExchange::payload_of(int peer, int64_t begin, int64_t numel, at::ScalarType dtype) const {
  const int64_t place = context_->board->of(peer, sequence_, 0)->payload;
  at::Tensor part = in_heap(peer, place == ShmBoard::kNowhere ? 0 : place, begin, numel, dtype);
  note_read(part);
  return part;
}

at::Tensor ShmExchange::second_payload(int64_t numel, at::ScalarType dtype) {
  if (numel == 0) return in_heap(rank(), 0, 0, 0, dtype);
  const at::Tensor block = context_->heap->take(numel * static_cast<int64_t>(c10::elementSize(dtype)));
  context_->board->own(sequence_).second = keep(block);
  return block.view(dtype);
}

void ShmExchange::publish_second() { context_->board->publish(sequence_, 1); }

at::Tensor ShmExchange::second_of(int peer, int64_t numel, at::ScalarType dtype) {
  const int64_t place = await_post(peer, 1).second;
  at::Tensor sums = in_heap(peer, place == ShmBoard::kNowhere ? 0 : place, 0, numel, dtype);
  note_read(sums);
  return sums;
}

void ShmExchange::finish() {
  context_->finish(sequence_);
  finished_ = true;
  blocks_.clear();
}

void ShmExchange::fail(const Failure& failure) const {
  context_->host->abort(failure.reason);
  failure.raise();
}

}  // namespace fsdp::comm
