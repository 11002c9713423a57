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

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "deferred/recorded_operator.h"

namespace fsdp::deferred {

class DrawSequence : public std::enable_shared_from_this<DrawSequence> {
 public:
  // Begins in the generator's current state, and then advances the generator to mark it.
  explicit DrawSequence(at::Generator generator);

  // Returns this thread's sequence for draws that are recorded from the generator now.
  static std::shared_ptr<DrawSequence> current(const at::Generator& generator);

  size_t add(const OperatorPtr& op);
  // Called when the operator of a draw is destroyed. If the draw has not run, keeps `remains` to run it later.
  void keep_remains(size_t draw, OperatorPtr remains);

  // Runs `body` with the generator in the state in which this draw begins, and restores the generator afterwards.
  void run(size_t draw, const std::function<void()>& body);
  // Runs into scratch memory all draws up to the last one that is not in `wanted` (ascending) but precedes a wanted
  // one. Otherwise it would run between the wanted draws, while other memory is held.
  void run_others_before(const std::vector<size_t>& wanted);
  // Runs all draws recorded so far, because ordinary code is about to draw.
  void catch_up();
  // Handles each sequence of which some draws have run and no needed draw is left: moves its generator to the state
  // after the last draw, unless the generator was used since the draws were recorded.
  static void settle_all();

 private:
  struct Entry {
    std::weak_ptr<RecordedOperator> op;
    OperatorPtr abandoned;
    at::Tensor state;  // in which it begins; set once known, while it may be needed
  };

  void settle();
  void pass();
  void pass_up_to(size_t end);
  void move_generator(const std::function<void()>& body);
  bool is_untouched() const;

  at::Generator generator_;
  at::Tensor recorded_at_;  // the generator's state while draws are recorded
  at::Tensor state_;        // after the draws before next_
  size_t next_ = 0;
  std::vector<Entry> entries_;
  bool begun_ = false;       // whether a draw has run for its result
  bool superseded_ = false;  // the generator was seeded or used since; another sequence records draws
  bool settled_ = false;
};

// Allows one replay at a time, because replays move generators back and forth.
std::recursive_mutex& replay_mutex();

}  // namespace fsdp::deferred
