// The random draws of a deferred initialisation from one generator, in the order of recording.
//
// [Note: draws in their order] Only the kernel of an operator knows how far it advances a generator. So the state in
// which a draw begins is found by running all draws before it, once. Draws whose results are not needed yet run into
// scratch memory, and the state in which they began is kept. If units are replayed in the order of recording, each
// number is drawn once, otherwise at most twice. A draw whose result is no longer needed (of a parameter that was
// initialised again) is kept because later draws depend on it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "deferred/recorded_operator.h"
#include "deferred/replay_mutex.h"

namespace fsdp::deferred {

class DrawSequence : public std::enable_shared_from_this<DrawSequence> {
 public:
  // Begins in the generator's current state, and then advances the generator to mark it.
  explicit DrawSequence(at::Generator generator);

  // Returns this thread's sequence for draws that are recorded from the generator now.
  static std::shared_ptr<DrawSequence> current(const at::Generator& generator) FSDP_EXCLUDES(replay_mutex);

  size_t add(const OperatorPtr& op) FSDP_EXCLUDES(replay_mutex);
  // Called when the operator of a draw is destroyed, which may be during a replay. If the draw has not run, keeps
  // `remains` to run it later.
  void keep_remains(size_t draw, OperatorPtr remains) FSDP_EXCLUDES(remains_mutex_);

  // Runs `body` with the generator in the state in which this draw begins, and restores the generator afterwards.
  void run(size_t draw, const std::function<void()>& body) FSDP_REQUIRES(replay_mutex);
  // Runs into scratch memory all draws up to the last one that is not in `wanted` (ascending) but precedes a wanted
  // one. Otherwise it would run between the wanted draws, while other memory is held.
  void run_others_before(const std::vector<size_t>& wanted) FSDP_REQUIRES(replay_mutex);
  // Runs all draws recorded so far, because ordinary code is about to draw.
  void catch_up() FSDP_EXCLUDES(replay_mutex);
  // Handles each sequence of which some draws have run and no needed draw is left: moves its generator to the state
  // after the last draw, unless the generator was used since the draws were recorded.
  static void settle_all() FSDP_EXCLUDES(replay_mutex);

 private:
  struct Entry {
    std::weak_ptr<RecordedOperator> op;
    OperatorPtr abandoned;
    at::Tensor state;  // in which it begins; set once known, while it may be needed
  };

  struct Remains {
    size_t draw;
    OperatorPtr op;  // null if the draw has run
  };

  void settle() FSDP_REQUIRES(replay_mutex);
  void take_remains() FSDP_REQUIRES(replay_mutex) FSDP_EXCLUDES(remains_mutex_);
  void pass() FSDP_REQUIRES(replay_mutex);
  void pass_up_to(size_t end) FSDP_REQUIRES(replay_mutex);
  bool is_untouched() const;

  at::Generator generator_;
  at::Tensor recorded_at_;                          // the generator's state while draws are recorded
  at::Tensor state_ FSDP_GUARDED_BY(replay_mutex);  // after the draws before next_
  std::atomic<size_t> next_ = 0;                    // written while replay_mutex is held
  std::vector<Entry> entries_ FSDP_GUARDED_BY(replay_mutex);
  bool begun_ FSDP_GUARDED_BY(replay_mutex) = false;  // whether a draw has run for its result
  // Whether the generator was seeded or used since: another sequence records draws.
  bool superseded_ FSDP_GUARDED_BY(replay_mutex) = false;
  bool settled_ FSDP_GUARDED_BY(replay_mutex) = false;
  base::Mutex remains_mutex_;
  std::vector<Remains> remains_ FSDP_GUARDED_BY(remains_mutex_);  // not in entries_ yet
};

}  // namespace fsdp::deferred
