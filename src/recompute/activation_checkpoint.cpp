#include "fsdp/activation_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <utility>

#include "recompute/checkpoint_node.h"
#include "recompute/transient_graph.h"
#include "torch_seams/autograd_node.h"

namespace fsdp {
namespace {

void refuse_forward_mode(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(input),
                                "fsdp: a checkpointed function has no forward-mode gradients");
  }
}

}  // namespace

std::vector<at::Tensor> activation_checkpoint_tensors(const CheckpointOptions& options, TensorsFunction function,
                                                      const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  refuse_forward_mode(inputs);
  auto node = seams::make_node<recompute::CheckpointNode>(options, std::move(function), inputs);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  std::vector<at::Tensor> results = node->run_forward(inputs);
  for (const at::Tensor& result : results) {
    if (result.defined() && torch::autograd::isDifferentiableType(result.scalar_type())) {
      torch::autograd::set_history(result, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  if (recompute::TransientGraph::is_recorded()) node->release_variables();
  return results;
}

bool requires_grad(const torch::nn::Module& module) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    if (entry.value().defined() && entry.value().requires_grad()) return true;
  }
  const auto children = module.children();
  return std::any_of(children.begin(), children.end(), [](const auto& child) { return requires_grad(*child); });
}

CheckpointPolicy CheckpointPolicy::every(int64_t k, CheckpointOptions options) {
  TORCH_CHECK_VALUE(k >= 1, "fsdp: CheckpointPolicy::every(", k, "): k must be at least 1");
  CheckpointPolicy policy;
  policy.every_ = k;
  policy.options_ = std::move(options);
  return policy;
}

CheckpointPolicy CheckpointPolicy::selected_operators(const std::vector<std::string>& names) {
  return full({.save_ops = names});
}

}  // namespace fsdp
