// Nets of two linear layers, for tests of single rules of the engine.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace fsdp::testing {

// Two layers in a row, with tanh in between.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl(int64_t in, int64_t hidden, int64_t out) {
    first = register_module("first", torch::nn::Linear(in, hidden));
    second = register_module("second", torch::nn::Linear(hidden, out));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }

  torch::nn::Linear first{nullptr}, second{nullptr};
};

// Two layers of equal size beside each other, of which ranks may use different ones.
struct ExpertsImpl : torch::nn::Module {
  explicit ExpertsImpl(bool bias = true) {
    const auto options = torch::nn::LinearOptions(4, 4).bias(bias);
    a = register_module("a", torch::nn::Linear(options));
    b = register_module("b", torch::nn::Linear(options));
  }

  torch::nn::Linear a{nullptr}, b{nullptr};
};

}  // namespace fsdp::testing
