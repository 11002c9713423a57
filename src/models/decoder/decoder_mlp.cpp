#include "models/decoder/decoder_mlp.h"

namespace fsdp::models {

DecoderMLPImpl::DecoderMLPImpl(const DecoderConfig& config, int64_t intermediate_size, const at::TensorOptions& options)
    : activation_(activation_named(config.activation)) {
  const auto linear = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, Linear(in, out, config.mlp_bias, options));
  };
  if (config.fused_gate_up) {
    gate_up_proj_ = linear("gate_up_proj", config.hidden_size, 2 * intermediate_size);
  } else {
    gate_proj_ = linear("gate_proj", config.hidden_size, intermediate_size);
    up_proj_ = linear("up_proj", config.hidden_size, intermediate_size);
  }
  down_proj_ = linear("down_proj", intermediate_size, config.hidden_size);
}

at::Tensor DecoderMLPImpl::forward(const at::Tensor& hidden_states) {
  if (!gate_up_proj_) {
    const at::Tensor gate = activation_(gate_proj_(hidden_states));
    return down_proj_(gate * up_proj_(hidden_states));
  }
  const std::vector<at::Tensor> parts = gate_up_proj_(hidden_states).chunk(2, -1);
  return down_proj_(activation_(parts[0]) * parts[1]);
}

}  // namespace fsdp::models
