// The interface of optimizers that update shards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fsdp/optimizer_state.h"

namespace fsdp::optim {

// An optimizer over a list of parameters, which it gets when it is made. Rows of split embedding tables have optimizers
// of another kind (sparse/row_optimizer.h): a step updates only the rows that were looked up.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates the parameters whose gradient is defined; the others and their state stay unchanged. Uses `gradient_scale`
  // times the gradients: a scale below 1 clips gradients whose norm exceeds the limit. Not collective.
  //
  // For implementers: the engine notices new values by the version counters of the parameters, so that a kernel that
  // does not count its writes needs seams::bump_version. State is allocated under a base::AllocationTag of
  // kOptimizerState, by which plans know it.
  virtual void step(double gradient_scale = 1.0) = 0;

  // Makes each step process the parameters in parts of about `nbytes` from now on and call `done` after each part, when
  // the state of that part may leave memory.
  virtual void after_each_part(std::function<void()> done, int64_t nbytes = int64_t{64} << 20) = 0;

  virtual void set_learning_rate(double learning_rate) = 0;
  virtual double learning_rate() const = 0;

  // Returns the state by name, as checkpoints store it. The result refers to this object, which must outlive it.
  virtual std::unique_ptr<OptimizerState> named_state() = 0;
  // Returns the size in bytes of the state allocated so far.
  virtual int64_t state_nbytes() const = 0;
};

}  // namespace fsdp::optim
