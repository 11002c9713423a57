// AdamW over shards, by ATen's fused kernels: one pass over parameter, gradient and state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/optimizer_state.h"

namespace fsdp {

// Defaults are those of torch.optim.AdamW, but for weight decay, which is off.
struct FusedAdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // decoupled, on all parameters
};

// Computes what torch.optim.AdamW(…, fused=True) does. State has the dtype and device of its parameter; gradients may
// have another floating dtype.
class FusedAdamW {
 public:
  // `parameters`: leaves, dense and contiguous, of floating dtypes; they may be empty.
  FusedAdamW(std::vector<at::Tensor> parameters, const FusedAdamWOptions& options);

  // Updates the parameters whose gradient is defined; the others and their state stay as they are. Gradients are
  // multiplied by `gradient_scale` before, in the same pass over memory: how a gradient is clipped that has a norm
  // above the limit.
  void step(double gradient_scale = 1.0);

  // A step goes through the parameters in parts of about `nbytes` from now on, and calls `done` after each: its state
  // may leave memory then.
  void after_each_part(std::function<void()> done, int64_t nbytes = int64_t{64} << 20);

  void set_learning_rate(double learning_rate) { options_.learning_rate = learning_rate; }
  double learning_rate() const { return options_.learning_rate; }
  // By name, as torch.optim.AdamW's: step, exp_avg, exp_avg_sq. Refers to this object, which must outlive it.
  std::unique_ptr<OptimizerState> named_state();

  // Bytes of the state so far.
  int64_t state_nbytes() const;

 private:
  class Named;
  // State of one parameter; undefined until its first gradient.
  struct State {
    at::Tensor steps;  // scalar fp32: how often it was updated
    at::Tensor mean;
    at::Tensor square_mean;
  };
  // Lists of equal length, as the kernel takes them.
  struct Batch {
    std::vector<at::Tensor> parameters, gradients, means, square_means, steps;
    int64_t nbytes = 0;  // of the parameters
  };

  void add(Batch& batch, size_t index);
  void update(Batch batch, double gradient_scale) const;

  FusedAdamWOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<State> states_;
  std::function<void()> part_done_;
  int64_t part_nbytes_ = 0;
};

}  // namespace fsdp
