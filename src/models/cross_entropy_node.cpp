#include "models/cross_entropy_node.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "torch_seams/gradient_hooks.h"

namespace fsdp::models {
namespace {

// Multiplies in the wider dtype of sum and factor: a bf16 or fp16 sum is not scaled in place, because the factor may
// not be representable in these dtypes. Autograd casts gradients to the dtype of their inputs.
at::Tensor scaled(at::Tensor sum, const at::Tensor& factor, bool in_place) {
  if (!sum.defined()) return sum;
  if (in_place && sum.scalar_type() == factor.scalar_type()) return sum.mul_(factor);
  return sum * factor.view(1);
}

}  // namespace

CrossEntropyNode::CrossEntropyNode(CrossEntropyGradients sums, const at::Tensor& labels, at::IntArrayRef sizes)
    : sums_(std::move(sums)), labels_(labels), sizes_(sizes.vec()) {}

CrossEntropyGradients CrossEntropyNode::take_sums(bool keep) {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  if (keep) return sums_;
  released_ = true;
  return std::exchange(sums_, {});
}

torch::autograd::variable_list CrossEntropyNode::apply(torch::autograd::variable_list&& gradients) {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "fused loss: double backward (create_graph) is not supported: logits are not part of the graph. Use the "
              "plain loss where create_graph is needed");
  if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
  const bool keep = seams::backward_keeps_graph();
  CrossEntropyGradients sums = take_sums(keep);
  // If all labels are ignored, the loss is NaN and its gradients are zero.
  const at::Tensor factor = gradients[0] / labels_.clamp_min(1);
  at::Tensor hidden_states, weight;
  if (task_should_compute_output(0)) hidden_states = scaled(std::move(sums.hidden_states), factor, !keep);
  if (task_should_compute_output(1)) weight = scaled(std::move(sums.weight), factor, !keep);
  if (hidden_states.defined()) hidden_states = hidden_states.view(sizes_);
  return {hidden_states, weight};
}

void CrossEntropyNode::release_variables() {
  CrossEntropyGradients sums;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  std::swap(sums, sums_);
  released_ = true;
}

}  // namespace fsdp::models
