// A model whose forward can leave parts out, for tests of autograd.
#pragma once

#include <torch/torch.h>

namespace fsdp::testing {

// Three layers in a row, a parameter of the root after the first, a head beside the last, and a spare layer.
struct BranchedNetImpl : torch::nn::Module {
  BranchedNetImpl() {
    a = register_module("a", torch::nn::Linear(4, 5));
    b = register_module("b", torch::nn::Linear(5, 5));
    c = register_module("c", torch::nn::Linear(5, 3));
    side = register_module("side", torch::nn::Linear(5, 2));
    spare = register_module("spare", torch::nn::Linear(3, 2));
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, 5));
    to(at::kDouble);
  }
  torch::Tensor encode(const torch::Tensor& x) { return torch::tanh(a(x)) * scale; }
  torch::Tensor decode(const torch::Tensor& h) { return c(torch::tanh(b(h))); }
  torch::Tensor forward(const torch::Tensor& x) { return decode(encode(x)); }
  torch::Tensor loss(const torch::Tensor& x) { return forward(x).pow(2).mean(); }

  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr}, side{nullptr}, spare{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(BranchedNet);

inline BranchedNet make_branched_net() { return BranchedNet(); }
inline torch::Tensor mean_square(const torch::Tensor& y) { return y.pow(2).mean(); }

}  // namespace fsdp::testing
