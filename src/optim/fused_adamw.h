// AdamW over shards, by ATen's fused kernels: one pass over parameter, gradient and state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fsdp/optimizer_state.h"
#include "optim/optimizer.h"

namespace fsdp::optim {

// The defaults are those of torch.optim.AdamW, except for weight decay, which is off.
struct FusedAdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // decoupled, on all parameters
};

// Computes the same as torch.optim.AdamW(…, fused=True). State has the dtype and device of its parameter; gradients may
// have another floating dtype.
class FusedAdamW final : public Optimizer {
 public:
  // Returns how many tensors like the parameter the state of each parameter has.
  static int64_t state_tensors(const FusedAdamWOptions& /*options*/) { return 2; }

  // `parameters` are leaves, dense and contiguous, of floating dtypes; they may be empty.
  FusedAdamW(std::vector<at::Tensor> parameters, const FusedAdamWOptions& options);

  // Multiplies gradients by `gradient_scale` in the same pass over memory.
  void step(double gradient_scale = 1.0) override;
  void after_each_part(std::function<void()> done, int64_t nbytes = int64_t{64} << 20) override;
  void set_learning_rate(double learning_rate) override { options_.learning_rate = learning_rate; }
  double learning_rate() const override { return options_.learning_rate; }
  // Names are those of torch.optim.AdamW: step, exp_avg, exp_avg_sq.
  std::unique_ptr<OptimizerState> named_state() override;
  int64_t state_nbytes() const override;

 private:
  class Named;
  // The state of one parameter; undefined until its first gradient.
  struct State {
    at::Tensor steps;  // scalar fp32: the number of updates
    at::Tensor mean;
    at::Tensor square_mean;
  };
  // Lists of equal length, as the kernel expects them.
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

}  // namespace fsdp::optim
