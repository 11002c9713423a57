#include "models/experts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>
#include <vector>

namespace fsdp::models {
namespace {

at::ScalarType wide(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

std::atomic<bool> routing_is_even = false;

// Returns how many elements of `experts`, on any device, have each index: [count] int64.
at::Tensor choices_of(const at::Tensor& experts, int64_t count) {
  const at::Tensor flat = experts.flatten();
  return at::zeros({count}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

// Returns the same on the host.
std::vector<int64_t> counts_of(const at::Tensor& experts, int64_t count) {
  const int64_t choices = experts.numel();
  std::vector<int64_t> counts(static_cast<size_t>(count), choices / count);
  if (experts.is_meta() || routing_is_even.load()) {
    for (int64_t i = 0; i < choices % count; ++i) ++counts[static_cast<size_t>(i)];
    return counts;
  }
  const at::Tensor on_host = choices_of(experts, count).cpu();
  std::copy_n(on_host.const_data_ptr<int64_t>(), counts.size(), counts.begin());
  return counts;
}

}  // namespace

RouterImpl::RouterImpl(int64_t hidden_size, const RouterOptions& router, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({router.experts, hidden_size}, options))), router_(router) {}

Routing RouterImpl::forward(const at::Tensor& hidden_states) {
  const at::Tensor logits = at::linear(hidden_states, weight);
  auto [weights, experts] = at::topk(at::softmax(logits, -1, wide(logits)), router_.experts_per_token, -1);
  if (router_.renormalizes) weights = weights / weights.sum(-1, /*keepdim=*/true);
  if (router_.rounds_weights) weights = weights.to(logits.scalar_type());
  return {logits, experts, weights};
}

ExpertsImpl::ExpertsImpl(int64_t experts, int64_t hidden_size, int64_t intermediate_size, Activation activation,
                         const at::TensorOptions& options)
    : gate_up_proj(
          register_parameter("gate_up_proj", at::empty({experts, 2 * intermediate_size, hidden_size}, options))),
      down_proj(register_parameter("down_proj", at::empty({experts, hidden_size, intermediate_size}, options))),
      activation_(activation) {}

at::Tensor ExpertsImpl::apply(const at::Tensor& hidden_states, const at::Tensor& gate_up,
                              const at::Tensor& down) const {
  const std::vector<at::Tensor> parts = at::linear(hidden_states, gate_up).chunk(2, -1);
  return at::linear(activation_(parts[0]) * parts[1], down);
}

at::Tensor ExpertsImpl::forward(const at::Tensor& hidden_states, const Routing& routing) {
  const int64_t count = gate_up_proj.size(0), per_token = routing.experts.size(1);
  const at::Tensor order = std::get<1>(at::sort(routing.experts.flatten(), /*stable=*/std::optional<bool>(true)));
  const at::Tensor tokens = at::div(order, per_token, "floor");
  const std::vector<int64_t> counts = counts_of(routing.experts, count);
  const std::vector<at::Tensor> inputs = hidden_states.index_select(0, tokens).split_with_sizes(counts);
  // Backward of unbind writes the gradient once, where backward of select would for each expert.
  const std::vector<at::Tensor> gate_ups = gate_up_proj.unbind(), downs = down_proj.unbind();
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) outputs.push_back(apply(inputs[i], gate_ups[i], downs[i]));
  }
  if (outputs.empty()) return at::zeros_like(hidden_states);
  const at::Tensor weights = routing.weights.flatten().index_select(0, order).unsqueeze(1);
  const at::Tensor weighted = (at::cat(outputs) * weights).to(hidden_states.scalar_type());
  return at::zeros_like(hidden_states).index_add_(0, tokens, weighted);
}

void assume_even_routing() { routing_is_even = true; }

at::Tensor load_balancing_loss(const std::vector<at::Tensor>& logits, int64_t experts_per_token) {
  TORCH_CHECK(!logits.empty(), "load_balancing_loss: there are no logits");
  const int64_t experts = logits.front().size(1);
  at::Tensor choices, probabilities;
  double rows = 0;
  for (const at::Tensor& of_layer : logits) {
    const at::Tensor probability = at::softmax(of_layer, -1);
    const at::Tensor chosen = choices_of(std::get<1>(at::topk(probability, experts_per_token, -1)), experts);
    const at::Tensor sum = probability.to(wide(probability)).sum(0);
    choices = choices.defined() ? choices + chosen : chosen;
    probabilities = probabilities.defined() ? probabilities + sum : sum;
    rows += static_cast<double>(of_layer.size(0));
  }
  const at::Tensor share = choices.to(probabilities.scalar_type()) / rows;
  return (share * (probabilities / rows)).sum() * static_cast<double>(experts);
}

}  // namespace fsdp::models
