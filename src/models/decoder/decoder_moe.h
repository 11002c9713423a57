#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "models/decoder/decoder_config.h"
#include "models/decoder/decoder_mlp.h"
#include "models/experts.h"
#include "models/layers.h"

namespace fsdp::models {

// Experts in the place of a layer's MLP, and a shared expert that sees all tokens, if the config has one.
class DecoderMoeImpl : public torch::nn::Module {
 public:
  struct Output {
    at::Tensor hidden_states;  // [batch, sequence, hidden_size]
    at::Tensor router_logits;  // [batch * sequence, experts]
  };

  DecoderMoeImpl(const DecoderConfig& config, const at::TensorOptions& options);
  Output forward(const at::Tensor& hidden_states);

 private:
  double jitter_;
  Router gate_;
  Experts experts_;
  DecoderMLP shared_expert_{nullptr};
  Linear shared_expert_gate_{nullptr};
};
TORCH_MODULE(DecoderMoe);

}  // namespace fsdp::models
