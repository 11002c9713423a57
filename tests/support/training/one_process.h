// Compares sharded training with the same training in one process: a step is written once and run both ways.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "support/devices/test_device.h"
#include "support/training/sharding.h"

namespace fsdp::testing {

// The way a model is sharded, and the number of ranks.
struct ShardingCase {
  int world_size;
  ShardingStrategy strategy;
  bool use_orig_params;
  bool strict;             // Gatherer::set_strict
  bool automatic = false;  // units are cut from the execution order
  ShardCut cut = ShardCut::kFlat;
};
std::string name_of(const ShardingCase& sharding);
// Returns cases with 1 to 4 and 8 ranks, all strategies, both values of use_orig_params, both cuts, and automatic
// units; about half of them are strict.
std::vector<ShardingCase> sharding_cases();
// Returns options with a unit for each module that has parameters of its own, or with automatic units of about two
// parameters.
Options options_of(const ShardingCase& sharding, const std::shared_ptr<Communicator>& world);
std::shared_ptr<ShardedModule> shard(torch::nn::Module& module, const ShardingCase& sharding, const Options& options);

// The interface of a step that both trainings run. In one process, the ranks run one after the other.
struct RankStep {
  ShardedModule* sharded;  // null in one process
  int rank;
  int step;
  double share;                      // factor of this rank's loss: 1 / world_size in one process, else 1
  std::vector<torch::Tensor>& seen;  // values that must be the same in both trainings

  bool first_in_one_process() const { return !sharded && rank == 0; }
  // Returns a batch [3, 4] that differs between ranks, steps and numbers.
  torch::Tensor x(int number = 0) const;
  void backward(const torch::Tensor& loss, bool retain_graph = false) const;
  void see(const torch::Tensor& value) const { seen.push_back(value.detach().cpu().clone()); }
};

// Whether the leaf of the given parameters has a gradient.
struct LeafGradient {
  std::vector<std::string> parameters;
  bool defined;
};

// The results that must be the same: the weights after all steps, the leaves with a gradient in each step, and the
// values that were seen.
struct Outcome {
  std::map<std::string, torch::Tensor> weights;
  std::vector<std::vector<LeafGradient>> gradients;  // by step
  std::vector<std::vector<torch::Tensor>> seen;      // by step; in one process, by step and rank
};

std::vector<LeafGradient> leaf_gradients(const torch::nn::Module& module);
// Returns one entry for each leaf of this rank. With use_orig_params, leaves without elements are left out.
std::vector<LeafGradient> leaf_gradients(const ShardedModule& sharded);
// Expects bit-equal results with one rank, and results equal to 1e-12 with several ranks, which add in a different
// order. A flat leaf must have a gradient if one of its parameters has one.
void expect_same_outcome(const Outcome& got, const Outcome& want, const ShardingCase& sharding, int rank);

constexpr int kSteps = 2;

template <typename Net, typename Step>
Outcome train_in_one_process(Net& net, const Step& run_step, int world_size) {
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    net.zero_grad();
    for (int rank = 0; rank < world_size; ++rank) {
      outcome.seen.emplace_back();
      run_step(net, RankStep{nullptr, rank, step, 1.0 / world_size, outcome.seen.back()});
    }
    outcome.gradients.push_back(leaf_gradients(net));
    descend(net.parameters());
  }
  outcome.weights = weights_of(net);
  return outcome;
}

template <typename Net, typename Step>
Outcome train_sharded(Net& net, ShardedModule& sharded, const Step& run_step, int rank) {
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    sharded.zero_grad();
    outcome.seen.emplace_back();
    run_step(net, RankStep{&sharded, rank, step, 1.0, outcome.seen.back()});
    outcome.gradients.push_back(leaf_gradients(sharded));
    descend(sharded.parameters());
  }
  outcome.weights = weights_of(sharded);
  return outcome;
}

void run_on_ranks(int world_size, const std::function<void(const std::shared_ptr<Communicator>&)>& body);
// Runs steps of plain gradient descent in one process and sharded, and compares the results. `make` returns a module
// holder; run_step(module, RankStep) runs forward and backward.
template <typename Make, typename Step>
void expect_as_in_one_process(const ShardingCase& sharding, const Make& make, const Step& run_step,
                              const std::function<void(Options&)>& change_options = {}) {
  if (!enough_devices(sharding.world_size)) GTEST_SKIP() << "needs a device for each of " << sharding.world_size;
  auto plain = seeded(make);
  plain->to(test_device());
  const Outcome want = train_in_one_process(*plain, run_step, sharding.world_size);
  run_on_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    auto net = seeded(make);
    net->to(test_device());
    Options options = options_of(sharding, world);
    if (change_options) change_options(options);
    auto sharded = shard(*net, sharding, options);
    expect_same_outcome(train_sharded(*net, *sharded, run_step, world->rank()), want, sharding, world->rank());
    EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
  });
}

}  // namespace fsdp::testing
