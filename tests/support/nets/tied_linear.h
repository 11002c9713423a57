// A layer that shares its weight with another module.
#pragma once

#include <torch/torch.h>

namespace fsdp::testing {

// Registers `shared`, a parameter of another module, as its weight.
struct TiedLinearImpl : torch::nn::LinearImpl {
  explicit TiedLinearImpl(const torch::Tensor& shared, bool bias = true)
      : LinearImpl(torch::nn::LinearOptions(shared.size(1), shared.size(0)).bias(bias)) {
    weight = parameters_["weight"] = shared;
  }
};

}  // namespace fsdp::testing
