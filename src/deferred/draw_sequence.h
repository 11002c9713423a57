// The random draws of a deferred initialisation from one generator, in the order of recording.
//
// [Note: draws in their order] How far an operator moves a generator is known only to its kernel. So the state in which
// a draw begins is found by running all draws before it, once; those whose results are not wanted yet run into scratch
// memory, and the state in which they began is kept. Units that are replayed in the order of recording draw each number
// once, others at most twice. A draw whose result nobody wants any more (a parameter that was initialised again) is
// kept for the sake of those behind it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "deferred/recorded_operator.h"

namespace fsdp::deferred {

class DrawSequence : public std::enable_shared_from_this<DrawSequence> {
 public:
  // Begins in the generator's state now, and leaves a mark in it.
  explicit DrawSequence(at::Generator generator);

  // The sequence of this thread to which a draw from the generator that is recorded now belongs.
  static std::shared_ptr<DrawSequence> current(const at::Generator& generator);

  size_t add(const OperatorPtr& op);
  // The operator of a draw goes. If it has not run, the draw stays.
  void abandon(size_t draw, OperatorPtr remains);

  // Runs `body` with the generator in the state in which this draw begins, and leaves the generator as it was.
  void run(size_t draw, const std::function<void()>& body);
  // Runs into scratch memory what would have to run so while the draws of `wanted` (ascending) are run in their order,
  // when other memory is held.
  void run_others_before(const std::vector<size_t>& wanted);
  // Runs all draws recorded so far, as ordinary code is about to draw.
  void catch_up();
  // For each sequence of which some draws have run, and none that is wanted is left: moves its generator to behind the
  // last one, unless it was used since they were recorded.
  static void settle_all();

 private:
  struct Entry {
    std::weak_ptr<RecordedOperator> op;
    OperatorPtr abandoned;
    at::Tensor state;  // in which it begins, once known and as long as it may be asked for
  };

  void settle();
  void pass();
  void pass_up_to(size_t end);
  void move_generator(const std::function<void()>& body);
  bool is_untouched() const;

  at::Generator generator_;
  at::Tensor recorded_at_;  // the generator's state while draws are recorded
  at::Tensor state_;        // behind the draws before next_
  size_t next_ = 0;
  std::vector<Entry> entries_;
  bool begun_ = false;       // whether a draw has run for its result
  bool superseded_ = false;  // the generator was seeded or used since, and draws are recorded elsewhere
  bool settled_ = false;
};

// One replay at a time: generators are moved back and forth.
std::recursive_mutex& replay_mutex();

}  // namespace fsdp::deferred
