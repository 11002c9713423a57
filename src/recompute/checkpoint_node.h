// The autograd node that represents a checkpointed region.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "recompute/ambient_state.h"
#include "recompute/kept_results.h"

namespace fsdp::recompute {

// [Note: the nested backward]
// apply() runs the function again on detached inputs, with gradients enabled, and starts a backward pass of its own on
// the results. This pass ends with gradients in `.grad` of the detached inputs, which are passed on, and of the
// parameters, to which no edge of the outer graph leads. So the outer backward cannot know which parameters a region
// reaches, and autograd::grad through a region is refused.
class CheckpointNode : public torch::autograd::Node {
 public:
  CheckpointNode(const CheckpointOptions& options, TensorsFunction function, const std::vector<at::Tensor>& inputs);

  // Runs the function for the first time. The results do not require gradients yet.
  std::vector<at::Tensor> run_forward(const std::vector<at::Tensor>& inputs);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "fsdp::Checkpoint"; }

 private:
  struct Description {
    explicit Description(const at::Tensor& result);
    bool operator==(const Description&) const = default;
    std::string str() const;

    bool defined;
    std::vector<int64_t> sizes = {};
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    c10::Device device = c10::kCPU;
  };

  std::vector<at::Tensor> first_run(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> unpack_inputs();
  std::vector<at::Tensor> recompute(const std::vector<at::Tensor>& inputs);
  void check_same(const std::vector<at::Tensor>& results) const;

  SavedOperators save_ops_;
  TensorsFunction function_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::optional<RandomState> random_;
  AutocastState autocast_;
  std::optional<KeptResults> kept_;
  std::vector<Description> results_;
  bool released_ = false;
};

}  // namespace fsdp::recompute
