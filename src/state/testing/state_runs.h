// For tests: a model whose state is saved and loaded, and training runs of it.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "fsdp/state_dict.h"
#include "optim/fused_adamw.h"
#include "state/held_part.h"
#include "state/memory_order.h"
#include "state/training_state.h"
#include "support/training/one_process.h"

namespace fsdp::testing {

// A model with odd sizes, a one-element parameter, a shared and a frozen parameter, a parameter in another memory
// format, a parameter that never gets a gradient, and buffers.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    a = register_module("a", torch::nn::Linear(4, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    b = register_module("b", torch::nn::Linear(7, 7));
    frozen = register_parameter("frozen", torch::rand({7}), /*requires_grad=*/false);
    spare = register_parameter("spare", torch::rand({3}));
    scale = register_parameter("scale", torch::rand({1}));
    register_parameter("tied", a->weight);
    b->weight.set_data(torch::rand({7, 7}).t());
    to(at::kDouble);
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return (b(torch::tanh(norm(a(x)))) * frozen * scale + b->weight[0]).pow(2).mean();
  }

  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor frozen, spare, scale;
};
TORCH_MODULE(Net);

// One rank's run: a sharded model and its optimizer.
struct OneRank {
  OneRank(const ShardingCase& sharding, const std::shared_ptr<Communicator>& world_, uint64_t seed, bool fused)
      : world(world_), net(seeded([] { return Net(); }, seed)) {
    sharded = shard(*net, sharding, options_of(sharding, world));
    if (sharding.automatic) sharded->cut_units();
    std::vector<torch::Tensor> trained;
    for (const torch::Tensor& leaf : sharded->parameters()) {
      if (leaf.requires_grad()) trained.push_back(leaf);
    }
    if (fused) {
      own = std::make_unique<optim::FusedAdamW>(trained, optim::FusedAdamWOptions{.learning_rate = 0.1});
      state = own->named_state();
    } else {
      torchs = std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(0.1).amsgrad(true));
      state = state_of(*torchs);
    }
  }
  // All ranks use the same batch, so that the number of ranks changes means only by rounding.
  void step(int number) {
    sharded->zero_grad();
    torch::manual_seed(1);
    net->loss(torch::cos(torch::arange(20, at::kDouble) + number).view({5, 4})).backward();
    own ? own->step() : void(torchs->step());
  }
  state::TrainingState training_state() { return {{{*sharded, *net}}, state.get()}; }

  // Returns weights, buffers and optimizer state, unsharded, by name.
  std::map<std::string, torch::Tensor> everything() {
    auto all = weights_of(*sharded);
    for (const auto& buffer : net->named_buffers()) all["buffer " + buffer.key()] = copy_on_host(buffer.value());
    return all;
  }

  std::shared_ptr<Communicator> world;
  Net net;
  std::shared_ptr<ShardedModule> sharded;
  std::unique_ptr<optim::FusedAdamW> own;
  std::unique_ptr<torch::optim::AdamW> torchs;
  std::unique_ptr<OptimizerState> state;
};

// ---------------------------------------------------------------- gradients that are given, not computed

// Returns a given gradient in the parameter's shape, determined by the parameter's first name, so that the optimizer's
// results do not depend on the order in which ranks add.
inline torch::Tensor gradient_of(const std::string& fqn, at::IntArrayRef sizes, int step) {
  const auto begin = static_cast<double>(std::hash<std::string>()(fqn) % 1000);
  return torch::cos(torch::arange(c10::multiply_integers(sizes), at::kDouble) + begin + 0.1 * step).view(sizes);
}
// Whether a parameter gets a gradient. With flat leaves, a parameter without a gradient has zeros.
inline bool has_gradient(const std::string& fqn) { return fqn != "spare" && fqn != "frozen"; }

// Sets the gradients of all leaves, as a backward would leave them.
inline void set_gradients(const ShardedModule& sharded, int step) {
  const bool flat = !sharded.engine().options().use_orig_params;
  for (const state::HeldPart& part : state::held_parts(sharded)) {
    torch::Tensor leaf = part.leaf;
    if (!leaf.requires_grad() || part.numel() == 0) continue;
    if (flat && !leaf.grad().defined()) leaf.mutable_grad() = torch::zeros_like(leaf);
    if (!has_gradient(part.fqn)) continue;
    const torch::Tensor whole = gradient_of(part.fqn, part.sizes, step).view(-1).to(leaf.device());
    const torch::Tensor mine =
        state::reordered(whole, part.sizes, {}, part.strides).narrow(0, part.begin, part.numel());
    if (flat) {
      leaf.grad().narrow(0, part.leaf_offset, part.numel()).copy_(mine);
    } else {
      leaf.mutable_grad() = mine;
    }
  }
}

// Whether a parameter is in the second parameter group, if there are two: the "bias" parameters are.
inline bool in_second_group(const std::string& fqn) { return fqn.find("bias") != std::string::npos; }

inline std::unique_ptr<torch::optim::AdamW> make_adamw(
    const std::vector<std::pair<std::string, torch::Tensor>>& parameters, bool grouped) {
  const torch::optim::AdamWOptions options = torch::optim::AdamWOptions(0.1).amsgrad(true);
  std::vector<std::vector<torch::Tensor>> groups(grouped ? 2 : 1);
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad()) groups[grouped && in_second_group(name)].push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> with_options;
  for (size_t i = 0; i < groups.size(); ++i) {
    with_options.emplace_back(groups[i], std::make_unique<torch::optim::AdamWOptions>(options));
    static_cast<torch::optim::AdamWOptions&>(with_options.back().options()).lr(0.1 / static_cast<double>(i + 1));
  }
  return std::make_unique<torch::optim::AdamW>(std::move(with_options), options);
}

// A model in one process, trained with these gradients.
struct PlainRun {
  PlainRun(bool grouped, bool spare_has_zeros, uint64_t seed = 17)
      : net(seeded([] { return Net(); }, seed)), zeros(spare_has_zeros) {
    std::set<const at::TensorImpl*> known;
    for (const auto& parameter : net->named_parameters()) {
      if (known.insert(parameter.value().unsafeGetTensorImpl()).second) {
        parameters.emplace_back(parameter.key(), parameter.value());
      }
    }
    optimizer = make_adamw(parameters, grouped);
    state = state_of(*optimizer);
    for (const bool second : {false, true}) {
      for (const auto& [name, parameter] : parameters) {
        if (parameter.requires_grad() && (grouped && in_second_group(name)) == second) fqns.push_back(name);
      }
    }
  }
  void step(int number) {
    for (auto& [name, parameter] : parameters) {
      if (!parameter.requires_grad()) continue;
      if (has_gradient(name)) {
        parameter.mutable_grad() = gradient_of(name, parameter.sizes(), number);
      } else if (zeros) {
        parameter.mutable_grad() = torch::zeros_like(parameter);
      }
    }
    optimizer->step();
  }

  Net net;
  bool zeros;
  std::vector<std::pair<std::string, torch::Tensor>> parameters;  // each parameter once, under its first name
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<OptimizerState> state;
  std::vector<std::string> fqns;  // in the optimizer's order
};

// One rank's part of the same run, sharded.
struct ShardedRun {
  ShardedRun(const ShardingCase& sharding, const std::shared_ptr<Communicator>& world_, uint64_t seed, bool grouped,
             const std::function<void(Options&)>& change = {})
      : world(world_), net(seeded([] { return Net(); }, seed)) {
    net->to(test_device());
    Options options = options_of(sharding, world);
    if (change) change(options);
    sharded = shard(*net, sharding, options);
    if (sharding.automatic) sharded->cut_units();
    optimizer = make_adamw(sharded->named_parameters(), grouped);
    state = state_of(*optimizer);
  }
  void step(int number) {
    sharded->zero_grad();
    set_gradients(*sharded, number);
    optimizer->step();
  }

  std::shared_ptr<Communicator> world;
  Net net;
  std::shared_ptr<ShardedModule> sharded;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<OptimizerState> state;
};

// Returns the parameters, under all of their names, and the buffers.
inline std::map<std::string, torch::Tensor> values_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> values;
  for (const auto& parameter : module.named_parameters()) values[parameter.key()] = parameter.value().detach();
  for (const auto& buffer : module.named_buffers()) values[buffer.key()] = buffer.value();
  return values;
}

inline void expect_same_state(const FullOptimizerState& got, const FullOptimizerState& want) {
  std::map<std::string, torch::Tensor> tensors, expected;
  for (const auto& [fqn, of_parameter] : got.state) {
    for (const auto& [name, tensor] : of_parameter.tensors) tensors[fqn + " " + name] = tensor;
  }
  for (const auto& [fqn, of_parameter] : want.state) {
    for (const auto& [name, tensor] : of_parameter.tensors) expected[fqn + " " + name] = tensor;
    ASSERT_EQ(got.state.count(fqn), 1u) << fqn;
    EXPECT_EQ(got.state.at(fqn).scalars, of_parameter.scalars) << fqn;
  }
  EXPECT_EQ(got.state.size(), want.state.size());
  expect_same(tensors, expected);
  ASSERT_EQ(got.groups.size(), want.groups.size());
  for (size_t i = 0; i < want.groups.size(); ++i) {
    const auto sorted = [](const ParameterGroup& group) {
      return std::set<std::string>(group.parameters.begin(), group.parameters.end());
    };
    EXPECT_EQ(sorted(got.groups[i]), sorted(want.groups[i]));
    EXPECT_EQ(got.groups[i].options, want.groups[i].options);
  }
}

// Cases with 1 to 4 ranks, all strategies, both kinds of leaves, both cuts, and automatic units.
inline std::vector<ShardingCase> state_cases() {
  using enum ShardingStrategy;
  return {{1, kFullShard, true, false},
          {2, kFullShard, false, false},
          {3, kFullShard, true, true},
          {4, kFullShard, false, false},
          {3, kShardGradOp, false, true},
          {2, kNoShard, true, false},
          {2, kNoShard, false, true},
          {4, kHybridShard, true, false},
          {4, kHybridShardZero2, false, true},
          {3, kFullShard, true, false, /*automatic=*/true},
          {3, kFullShard, true, false, /*automatic=*/false, ShardCut::kRows},
          {4, kShardGradOp, false, true, /*automatic=*/false, ShardCut::kRows}};
}

}  // namespace fsdp::testing
