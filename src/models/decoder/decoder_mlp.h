#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "models/activations.h"
#include "models/decoder/decoder_config.h"
#include "models/layers.h"

namespace fsdp::models {

// down_proj(act(gate_proj(x)) * up_proj(x)).
class DecoderMLPImpl : public torch::nn::Module {
 public:
  // intermediate_size: the config's, but for experts.
  DecoderMLPImpl(const DecoderConfig& config, int64_t intermediate_size, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& hidden_states);

 private:
  Activation activation_;
  Linear gate_proj_{nullptr}, up_proj_{nullptr};  // or
  Linear gate_up_proj_{nullptr};
  Linear down_proj_{nullptr};
};
TORCH_MODULE(DecoderMLP);

}  // namespace fsdp::models
