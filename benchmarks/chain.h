// A chain of blocks whose values follow from a formula, the same here and in torch_chain.py.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "block.h"

namespace fsdp::benchmarks {

inline at::Tensor numbers(at::IntArrayRef sizes, double step, double shift) {
  const at::Tensor places = torch::arange(c10::multiply_integers(sizes)).to(at::kFloat);
  return torch::sin(places * step + shift).view(sizes);
}

// The blocks [begin, end) of the chain.
struct Chain : torch::nn::Module {
  Chain(int64_t width, int begin, int end) {
    const torch::NoGradGuard no_grad;
    for (int i = begin; i < end; ++i) {
      Block block(width, 4 * width);
      register_module("block" + std::to_string(i), block);
      for (at::Tensor& parameter : block->parameters()) {
        if (parameter.dim() == 2) parameter.copy_(numbers(parameter.sizes(), 0.37, i) / width);
      }
      block->up->bias.zero_();
      block->down->bias.zero_();
      blocks.push_back(block);
    }
  }
  at::Tensor forward(at::Tensor hidden) {
    for (Block& block : blocks) hidden = block->forward(hidden);
    return hidden;
  }
  std::vector<Block> blocks;
};

}  // namespace fsdp::benchmarks
