// A row of layers, each a unit, for tests of the order in which units are gathered and reduced.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "support/training/sharding.h"

namespace fsdp::testing {

// Layers in a row that can be run in any order, between parameters of the root.
struct RowImpl : torch::nn::Module {
  explicit RowImpl(int depth) {
    first = register_module("first", torch::nn::Linear(5, 7));
    for (int i = 0; i < depth; ++i) layers.push_back(register_module("l" + std::to_string(i), torch::nn::Linear(7, 7)));
    last = register_parameter("last", torch::linspace(-1, 1, 7));
    to(at::kDouble);
  }
  torch::Tensor forward(torch::Tensor x, const std::vector<int>& order) {
    x = torch::tanh(first(x));
    for (int i : order) {
      x = x + torch::tanh(layers[i](x));
      if (after_layer) after_layer(i);
    }
    return (x * last).pow(2).mean();
  }
  torch::nn::Linear first{nullptr};
  std::vector<torch::nn::Linear> layers;
  torch::Tensor last;
  std::function<void(int)> after_layer;
};
TORCH_MODULE(Row);

inline constexpr int kRowDepth = 5;
inline const std::vector<int> kInOrder = {0, 1, 2, 3, 4};

inline Row make_row() {
  return seeded([] { return Row(kRowDepth); });
}

// Makes each of l0, l1, … a unit; the layer `first` is part of the root.
inline Options row_options(const std::shared_ptr<Communicator>& communicator) {
  Options options;
  options.communicator = communicator;
  options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.fqn.size() == 2; };
  return options;
}

// Returns the batch of a rank.
inline torch::Tensor row_input(int rank) { return torch::arange(15).to(at::kDouble).view({3, 5}) / (10 + rank); }

// Runs a step of plain gradient descent.
inline void row_step(Row& row, ShardedModule& sharded, int rank, const std::vector<int>& order = kInOrder) {
  sharded.zero_grad();
  row->forward(row_input(rank), order).backward();
  descend(sharded.parameters());
}

}  // namespace fsdp::testing
