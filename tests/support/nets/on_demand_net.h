// A net one layer of which is used on demand.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "support/training/sharding.h"

namespace fsdp::testing {

// Three layers, one of which is used on demand.
struct OnDemandNetImpl : torch::nn::Module {
  OnDemandNetImpl() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
    c = register_module("c", torch::nn::Linear(4, 4));
    x = torch::arange(8).to(torch::kFloat).view({2, 4}) / 8;
  }
  torch::Tensor loss(bool with_b = true) {
    torch::Tensor h = torch::tanh(a(x));
    return c(with_b ? torch::tanh(b(h)) : h).pow(2).sum();
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  torch::Tensor x;
};
inline std::shared_ptr<OnDemandNetImpl> make_on_demand_net() {
  return seeded([] { return std::make_shared<OnDemandNetImpl>(); });
}

}  // namespace fsdp::testing
