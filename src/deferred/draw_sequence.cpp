#include "deferred/draw_sequence.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/uniform.h>

#include <algorithm>
#include <map>

#include "deferred/replay.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::deferred {
namespace {

at::Tensor state_of(const at::Generator& generator) {
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(generator.unsafeGetGeneratorImpl()->mutex_);
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  seams::CleanDispatchGuard clean;
  std::lock_guard lock(generator.unsafeGetGeneratorImpl()->mutex_);
  generator.set_state(state);
}

bool same_state(const at::Tensor& a, const at::Tensor& b) {
  seams::CleanDispatchGuard clean;
  return at::equal(a, b);
}

// The sequences of all threads of which draws have run for their results, until they are settled.
std::vector<std::shared_ptr<DrawSequence>>& begun_sequences() {
  static auto* sequences = new std::vector<std::shared_ptr<DrawSequence>>;  // not destroyed: generators may die first
  return *sequences;
}

}  // namespace

std::recursive_mutex& replay_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// Advances the generator by one number: if it is seeded again, even with the same seed, its state then differs from
// recorded_at_.
DrawSequence::DrawSequence(at::Generator generator) : generator_(std::move(generator)), state_(state_of(generator_)) {
  seams::CleanDispatchGuard clean;
  at::empty({1}, at::TensorOptions(generator_.device())).uniform_(0, 1, generator_);
  recorded_at_ = state_of(generator_);
}

std::shared_ptr<DrawSequence> DrawSequence::current(const at::Generator& generator) {
  thread_local std::map<const c10::GeneratorImpl*, std::weak_ptr<DrawSequence>> sequences;
  std::lock_guard lock(replay_mutex());
  std::weak_ptr<DrawSequence>& known = sequences[generator.unsafeGetGeneratorImpl()];
  std::shared_ptr<DrawSequence> sequence = known.lock();
  if (!sequence || sequence->settled_ || !sequence->is_untouched()) {
    if (sequence) sequence->superseded_ = true;
    sequence = std::make_shared<DrawSequence>(generator);
    known = sequence;
  }
  return sequence;
}

bool DrawSequence::is_untouched() const { return same_state(state_of(generator_), recorded_at_); }

size_t DrawSequence::add(const OperatorPtr& op) {
  std::lock_guard lock(replay_mutex());
  entries_.push_back({op, nullptr, {}});
  return entries_.size() - 1;
}

void DrawSequence::keep_remains(size_t draw, OperatorPtr remains) {
  std::lock_guard lock(replay_mutex());
  entries_[draw].state.reset();
  if (draw >= next_) entries_[draw].abandoned = std::move(remains);
}

void DrawSequence::move_generator(const std::function<void()>& body) {
  struct Restore {
    at::Generator& generator;
    at::Tensor before;
    ~Restore() { set_state(generator, before); }
  } restore{generator_, state_of(generator_)};
  body();
}

// Runs the draw next_ into scratch memory.
void DrawSequence::pass() {
  OperatorPtr op = entries_[next_].op.lock();
  if (op) {
    entries_[next_].state = state_;
  } else {
    op = std::exchange(entries_[next_].abandoned, nullptr);
  }
  move_generator([&] {
    draw_into_scratch(*op, [&] { set_state(generator_, state_); });
    state_ = state_of(generator_);
  });
  ++next_;
}

void DrawSequence::pass_up_to(size_t end) {
  while (next_ < end) pass();
}

void DrawSequence::run(size_t draw, const std::function<void()>& body) {
  std::lock_guard lock(replay_mutex());
  pass_up_to(draw);
  if (!std::exchange(begun_, true)) begun_sequences().push_back(shared_from_this());
  if (draw == next_) entries_[draw].state = state_;
  move_generator([&] {
    set_state(generator_, entries_[draw].state);
    body();
    if (draw == next_) {
      state_ = state_of(generator_);
      ++next_;
    }
  });
}

void DrawSequence::run_others_before(const std::vector<size_t>& wanted) {
  std::lock_guard lock(replay_mutex());
  size_t end = next_;
  for (size_t draw = next_; !wanted.empty() && draw < wanted.back(); ++draw) {
    if (!std::binary_search(wanted.begin(), wanted.end(), draw)) end = draw + 1;
  }
  pass_up_to(end);
}

void DrawSequence::catch_up() {
  std::lock_guard lock(replay_mutex());
  pass_up_to(entries_.size());
  set_state(generator_, state_);
  settled_ = true;
}

void DrawSequence::settle_all() {
  std::lock_guard lock(replay_mutex());
  std::erase_if(begun_sequences(), [](const auto& sequence) {
    sequence->settle();
    return sequence->settled_;
  });
}

void DrawSequence::settle() {
  bool pending = std::any_of(entries_.begin() + static_cast<std::ptrdiff_t>(next_), entries_.end(),
                             [](const Entry& entry) { return !entry.op.expired(); });
  if (pending || settled_) return;
  bool untouched = !superseded_ && is_untouched();
  settled_ = true;
  if (untouched) {
    pass_up_to(entries_.size());
    set_state(generator_, state_);
  }
}

}  // namespace fsdp::deferred
