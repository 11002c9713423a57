// A net of nested modules, and the units into which it was cut.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "support/training/sharding.h"

namespace fsdp::testing {

// Returns "unit: parameter parameter" for each unit, in order.
inline std::vector<std::string> units_of(const ShardedModule& sharded) {
  std::vector<std::string> result;
  for (const auto& unit : sharded.engine().units()) {
    std::string line = unit->name() + ":";
    for (const auto& flat : unit->flat_parameters()) {
      for (const flat::ShardedParameter& parameter : flat->parameters()) {
        line += " " + parameter.fqn;
        for (const std::string& other : parameter.other_fqns) line += "=" + other;
      }
    }
    result.push_back(line);
  }
  return result;
}

// Two layers and a parameter of their own.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    left = register_module("left", torch::nn::Linear(2, 3));
    right = register_module("right", torch::nn::Linear(3, 2));
    scale = register_parameter("scale", torch::ones({2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return right(torch::tanh(left(x))) * scale; }
  torch::nn::Linear left{nullptr}, right{nullptr};
  torch::Tensor scale;
};

// Two pairs and a parameter of the root.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    a = register_module("a", std::make_shared<PairImpl>());
    b = register_module("b", std::make_shared<PairImpl>());
    bias = register_parameter("bias", torch::zeros({2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(a->forward(x)) + bias; }
  std::shared_ptr<PairImpl> a, b;
  torch::Tensor bias;
};
inline std::shared_ptr<OuterImpl> make_outer() {
  return seeded([] { return std::make_shared<OuterImpl>(); });
}
// Returns an input of OuterImpl.
inline torch::Tensor outer_input() { return torch::ones({3, 2}); }

// Returns options for one rank without a policy.
inline Options plain_options() { return one_rank_options_for_lists(); }

}  // namespace fsdp::testing
