#include "deferred/draw_sequence.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/uniform.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <utility>

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

// Restores the state of a generator at the end of the scope.
class RestoredState {
 public:
  explicit RestoredState(at::Generator& generator) : generator_(generator), before_(state_of(generator)) {}
  ~RestoredState() { set_state(generator_, before_); }
  RestoredState(const RestoredState&) = delete;
  RestoredState& operator=(const RestoredState&) = delete;

 private:
  at::Generator& generator_;
  const at::Tensor before_;
};

// The sequences of all threads of which draws have run for their results, until they are settled.
std::vector<std::shared_ptr<DrawSequence>>& begun_sequences() FSDP_REQUIRES(replay_mutex) {
  static auto* sequences = new std::vector<std::shared_ptr<DrawSequence>>;  // not destroyed: generators may die first
  return *sequences;
}

}  // namespace

// Advances the generator by one number: if it is seeded again, even with the same seed, its state then differs from
// recorded_at_.
DrawSequence::DrawSequence(at::Generator generator) : generator_(std::move(generator)), state_(state_of(generator_)) {
  seams::CleanDispatchGuard clean;
  at::empty({1}, at::TensorOptions(generator_.device())).uniform_(0, 1, generator_);
  recorded_at_ = state_of(generator_);
}

std::shared_ptr<DrawSequence> DrawSequence::current(const at::Generator& generator) {
  thread_local std::map<const c10::GeneratorImpl*, std::weak_ptr<DrawSequence>> sequences;
  base::MutexLock lock(replay_mutex);
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
  base::MutexLock lock(replay_mutex);
  entries_.push_back({op, nullptr, {}});
  return entries_.size() - 1;
}

void DrawSequence::keep_remains(size_t draw, OperatorPtr remains) {
  base::MutexLock lock(remains_mutex_);
  remains_.push_back({draw, draw < next_ ? nullptr : std::move(remains)});
}

// Destroys the remains of draws that have run meanwhile without holding remains_mutex_: operators that only they need
// end with them, and leave remains of their own.
void DrawSequence::take_remains() {
  std::vector<Remains> remains;
  {
    base::MutexLock lock(remains_mutex_);
    remains.swap(remains_);
  }
  for (auto& [draw, op] : remains) {
    entries_[draw].state.reset();
    if (draw >= next_) entries_[draw].abandoned = std::move(op);
  }
}

// Runs the draw next_ into scratch memory.
void DrawSequence::pass() {
  OperatorPtr op = entries_[next_].op.lock();
  if (op) {
    entries_[next_].state = state_;
  } else {
    take_remains();
    op = std::exchange(entries_[next_].abandoned, nullptr);
    TORCH_CHECK(op, "fsdp: a deferred tensor is being destroyed in another thread while draws are replayed");
  }
  const RestoredState restored(generator_);
  draw_into_scratch(*op, [this, state = state_] { set_state(generator_, state); });
  state_ = state_of(generator_);
  ++next_;
}

void DrawSequence::pass_up_to(size_t end) {
  take_remains();
  while (next_ < end) pass();
}

void DrawSequence::run(size_t draw, const std::function<void()>& body) {
  pass_up_to(draw);
  if (!std::exchange(begun_, true)) begun_sequences().push_back(shared_from_this());
  if (draw == next_) entries_[draw].state = state_;
  const RestoredState restored(generator_);
  set_state(generator_, entries_[draw].state);
  body();
  if (draw == next_) {
    state_ = state_of(generator_);
    ++next_;
  }
}

void DrawSequence::run_others_before(const std::vector<size_t>& wanted) {
  size_t end = next_;
  for (size_t draw = next_; !wanted.empty() && draw < wanted.back(); ++draw) {
    if (!std::binary_search(wanted.begin(), wanted.end(), draw)) end = draw + 1;
  }
  pass_up_to(end);
}

void DrawSequence::catch_up() {
  base::MutexLock lock(replay_mutex);
  pass_up_to(entries_.size());
  set_state(generator_, state_);
  settled_ = true;
}

void DrawSequence::settle_all() {
  base::MutexLock lock(replay_mutex);
  // Settling may run draws of other generators, which begin sequences.
  const std::vector<std::shared_ptr<DrawSequence>> sequences = std::exchange(begun_sequences(), {});
  for (const std::shared_ptr<DrawSequence>& sequence : sequences) {
    sequence->settle();
    if (!sequence->settled_) begun_sequences().push_back(sequence);
  }
}

void DrawSequence::settle() {
  take_remains();
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
