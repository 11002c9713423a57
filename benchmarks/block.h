// The block from which benchmarks build their models. It has six parameters. PyTorch's side is torch_block.py.
#pragma once

#include <torch/torch.h>

namespace fsdp::benchmarks {

// A normalisation and two linear layers with a residual connection around them.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t hidden)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, hidden))),
        down(register_module("down", torch::nn::Linear(hidden, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

}  // namespace fsdp::benchmarks
