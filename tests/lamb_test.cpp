// An example of an optimizer that needs the norms of whole parameters: LAMB (You et al., 2020) over shards equals LAMB
// on the whole model in one process.
#include <cmath>

#include "fsdp/shard_norms.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using Weights = std::map<std::string, torch::Tensor>;

constexpr double kRate = 0.02, kBeta1 = 0.9, kBeta2 = 0.99, kEpsilon = 1e-6, kDecay = 0.1;
constexpr int kSteps = 6;

// Adam's direction with weight decay for one tensor or a part of it. It is elementwise and needs no other rank.
struct Direction {
  torch::Tensor operator()(const torch::Tensor& weight, const torch::Tensor& gradient) {
    if (!mean.defined()) mean = torch::zeros_like(weight), square = torch::zeros_like(weight);
    ++steps;
    mean.mul_(kBeta1).add_(gradient, 1 - kBeta1);
    square.mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
    const torch::Tensor denominator = (square / (1 - std::pow(kBeta2, steps))).sqrt() + kEpsilon;
    return mean / (1 - std::pow(kBeta1, steps)) / denominator + kDecay * weight;
  }
  torch::Tensor mean, square;
  int steps = 0;
};

// Returns the factor by which a parameter moves along its direction.
double step_size(double weight_norm, double direction_norm) {
  return kRate * (weight_norm > 0 && direction_norm > 0 ? weight_norm / direction_norm : 1.0);
}

// LAMB over the shards of this rank.
class ShardedLamb {
 public:
  explicit ShardedLamb(ShardedModule& sharded) : sharded_(sharded), directions_(sharded.parameters().size()) {}

  void step() {
    const torch::NoGradGuard no_grad;
    const auto leaves = sharded_.parameters();
    std::vector<torch::Tensor> updates(leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i].grad().defined()) updates[i] = directions_[i](leaves[i].detach(), leaves[i].grad());
    }
    const auto weight_norms = parameter_norms(sharded_, NormOf::kParameter);
    const auto update_norms = parameter_norms(sharded_, updates);
    const auto slices = sharded_.shard_slices();
    for (size_t i = 0; i < slices.size(); ++i) {
      const torch::Tensor update = part_of(slices[i], leaves, updates);
      if (update.defined()) torch::Tensor(slices[i].data).sub_(update, step_size(weight_norms[i], update_norms[i]));
    }
  }

 private:
  // Returns the part of the updates that belongs to a slice. Leaves and slices share the memory of the shard.
  static torch::Tensor part_of(const ShardSlice& slice, const std::vector<torch::Tensor>& leaves,
                               const std::vector<torch::Tensor>& updates) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      const int64_t offset = slice.data.storage_offset() - leaves[i].storage_offset();
      const bool holds = slice.data.is_alias_of(leaves[i]) && offset >= 0 &&
                         offset + slice.data.numel() <= leaves[i].numel() && slice.data.numel() > 0;
      if (holds && updates[i].defined()) return updates[i].narrow(0, offset, slice.data.numel());
    }
    return {};
  }

  ShardedModule& sharded_;
  std::vector<Direction> directions_;
};

// Trains in one process on the mean loss over all ranks' batches.
Weights train_alone(int world_size) {
  TinyLM model = make_tiny_lm({}, torch::kDouble);
  const auto parameters = model->parameters();
  std::vector<Direction> directions(parameters.size());
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    for (int rank = 0; rank < world_size; ++rank) (model->loss(testing::batch_of(rank, step)) / world_size).backward();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      torch::Tensor weight = parameters[i];
      const torch::Tensor update = directions[i](weight.detach(), weight.grad());
      weight.sub_(update, step_size(weight.norm().item<double>(), update.norm().item<double>()));
    }
  }
  return weights_of(*model);
}

Weights train_sharded(const std::shared_ptr<Communicator>& communicator, bool use_orig_params) {
  TinyLM model = make_tiny_lm({}, torch::kDouble);
  auto sharded =
      fully_shard(*model, testing::block_options(communicator, ShardingStrategy::kFullShard, use_orig_params));
  ShardedLamb optimizer(*sharded);
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    model->loss(testing::batch_of(communicator->rank(), step)).backward();
    optimizer.step();
  }
  return weights_of(*sharded);
}

class Lamb : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Lamb, OverShardsEqualsOneProcess) {
  const auto [world_size, use_orig_params] = GetParam();
  const Weights want = train_alone(world_size);
  run_ranks(world_size, [&, orig = use_orig_params](std::shared_ptr<Communicator> communicator) {
    const Weights got = train_sharded(communicator, orig);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) {
      const double error = (got.at(name) - tensor).norm().item<double>();
      EXPECT_LE(error, 1e-12 * tensor.norm().item<double>()) << name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Lamb, ::testing::Combine(::testing::Values(1, 2, 3, 4, 8), ::testing::Bool()),
                         [](const auto& info) {
                           return c10::str(std::get<0>(info.param), "ranks_",
                                           std::get<1>(info.param) ? "orig" : "flat");
                         });

}  // namespace
}  // namespace fsdp
