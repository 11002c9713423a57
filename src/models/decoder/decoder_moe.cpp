#include "models/decoder/decoder_moe.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>

namespace fsdp::models {

DecoderMoeImpl::DecoderMoeImpl(const DecoderConfig& config, const at::TensorOptions& options)
    : jitter_(config.experts->jitter),
      gate_(register_module("gate", Router(config.hidden_size, config.experts->router, options))),
      experts_(register_module(
          "experts", Experts(config.experts->router.experts, config.hidden_size, config.experts->intermediate_size,
                             activation_named(config.activation), options))) {
  if (!config.experts->shared_intermediate_size) return;
  shared_expert_ =
      register_module("shared_expert", DecoderMLP(config, *config.experts->shared_intermediate_size, options));
  shared_expert_gate_ =
      register_module("shared_expert_gate", Linear(config.hidden_size, 1, /*with_bias=*/false, options));
}

DecoderMoeImpl::Output DecoderMoeImpl::forward(const at::Tensor& hidden_states) {
  at::Tensor input = hidden_states;
  if (jitter_ > 0 && is_training()) input = input * at::empty_like(input).uniform_(1.0 - jitter_, 1.0 + jitter_);
  const at::Tensor tokens = input.flatten(0, 1);
  const Routing routing = gate_(tokens);
  at::Tensor output = experts_(tokens, routing).view(input.sizes());
  if (shared_expert_) {
    const at::Tensor share = at::sigmoid(shared_expert_gate_(input));
    output = output + share * shared_expert_(input);
  }
  return {output, routing.logits};
}

}  // namespace fsdp::models
