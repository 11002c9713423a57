// SGD over shards, with momentum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "optim/optimizer.h"

namespace fsdp::optim {

// The defaults are those of torch.optim.SGD.
struct SgdOptions {
  double learning_rate = 1e-3;
  double momentum = 0.0;      // 0: none, and the optimizer allocates no state
  double weight_decay = 0.0;  // times the parameter, added to the gradient; on all parameters
};

// Computes the same bits as torch.optim.SGD without dampening and Nesterov momentum, if gradients have the dtype of
// their parameter; gradients of another floating dtype are cast to it first. Keeps the gradients as they are.
class Sgd final : public Optimizer {
 public:
  // Returns how many tensors like the parameter the state of each parameter has.
  static int64_t state_tensors(const SgdOptions& options) { return options.momentum != 0 ? 1 : 0; }

  // `parameters` are leaves of floating dtypes; they may be empty.
  Sgd(std::vector<at::Tensor> parameters, const SgdOptions& options);

  void step(double gradient_scale = 1.0) override;
  void after_each_part(std::function<void()> done, int64_t nbytes = int64_t{64} << 20) override;
  void set_learning_rate(double learning_rate) override { options_.learning_rate = learning_rate; }
  double learning_rate() const override { return options_.learning_rate; }
  // The name is that of torch.optim.SGD: momentum_buffer. With momentum 0, a given buffer is kept, but not used.
  std::unique_ptr<OptimizerState> named_state() override;
  int64_t state_nbytes() const override;

 private:
  class Named;

  void update(const std::vector<size_t>& part, double gradient_scale);
  // Returns the gradients times `gradient_scale`, plus weight decay.
  std::vector<at::Tensor> directions(const std::vector<size_t>& part, double gradient_scale) const;
  // Adds `directions` to the momentum of the parameters. Returns their momentum buffers.
  std::vector<at::Tensor> moved_momentum(const std::vector<size_t>& part, const std::vector<at::Tensor>& directions);

  SgdOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> momentum_;  // for each parameter; undefined until its first gradient
  std::function<void()> part_done_;
  int64_t part_nbytes_ = int64_t{64} << 20;  // bounds the scaled gradients that a step holds
};

}  // namespace fsdp::optim
