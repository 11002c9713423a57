// Tests optimizers that need whole parameters while weights are split over ranks: they see whole values and gradients,
// and equal the same optimizer in one process. One rank of all keeps the state of a split parameter.
#include <mutex>
#include <set>

#include "support/nets/split_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::split_optimizers_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using torch::Tensor;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;

constexpr int kSteps = 4;

// Steps along momentum; that of a matrix is brought nearer to an orthogonal one, which no part of it can do by itself.
class Orthogonaliser {
 public:
  void update(const std::string& name, Tensor value, const Tensor& gradient) {
    const torch::NoGradGuard no_grad;
    Tensor& momentum = momenta_.try_emplace(name, torch::zeros_like(gradient)).first->second;
    ASSERT_EQ(momentum.sizes(), gradient.sizes()) << name;
    momentum.mul_(0.9).add_(gradient);
    value.sub_(value.dim() == 2 ? nearer_to_orthogonal(momentum) : momentum, 0.02);
  }
  const std::map<std::string, Tensor>& momenta() const { return momenta_; }

 private:
  static Tensor nearer_to_orthogonal(const Tensor& matrix) {
    const Tensor x = matrix / (matrix.norm() + 1e-3);
    return 1.5 * x - 0.5 * x.mm(x.t()).mm(x);
  }
  std::map<std::string, Tensor> momenta_;
};

struct Case {
  int data, tensor;
  ShardingStrategy strategy;
  bool use_orig_params = true;
  SplitNetShape shape = {6, 3, false, false};
};

// The net on one rank.
struct Sharded {
  Sharded(const Case& one, const Ranks& world)
      : mesh(DeviceMesh::make(world, {{"dp_shard", one.data}, {"tp", one.tensor}})), net(make_split_net(one.shape)) {
    Options options = split_net_options(mesh, one.shape, one.strategy);
    options.use_orig_params = one.use_orig_params;
    module = fully_shard(*net, options);
  }
  void run_passes(int step) {
    module->zero_grad();
    net->loss(split_net_ids(step, mesh.rank("dp_shard"))).backward();
  }
  DeviceMesh mesh;
  SplitNet net;
  std::shared_ptr<ShardedModule> module;
};

std::map<std::string, Tensor> train_alone(const Case& one) {
  SplitNet net = make_split_net(one.shape);
  Orthogonaliser optimizer;
  for (int step = 0; step < kSteps; ++step) {
    net->zero_grad();
    for (int rank = 0; rank < one.data; ++rank) (net->loss(split_net_ids(step, rank)) / one.data).backward();
    for (const auto& item : net->named_parameters()) {
      const bool is_tied_head = one.shape.tied && item.key() == "head.weight";
      if (!is_tied_head) optimizer.update(item.key(), item.value(), item.value().grad());
    }
  }
  return weights_of(*net);
}

class SplitOptimizers : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, SplitOptimizers,
                         ::testing::Values(Case{1, 2, kFullShard}, Case{1, 3, kNoShard}, Case{2, 2, kFullShard},
                                           Case{2, 2, kNoShard}, Case{3, 2, kShardGradOp, false},
                                           Case{2, 2, kFullShard, false, {6, 3, true, false}},
                                           Case{2, 3, kFullShard, true, {6, 3, true, true, true}}),
                         [](const auto& info) {
                           const Case& one = info.param;
                           return c10::str(one.data, "x", one.tensor, to_string(one.strategy),
                                           one.use_orig_params ? "" : "_flat", one.shape.tied ? "_tied" : "",
                                           one.shape.splits_sequence ? "_sequence" : "");
                         });

// Of the first step.
TEST_P(SplitOptimizers, SeeTheGradientsOfOneProcess) {
  const Case& one = GetParam();
  SplitNet alone = make_split_net(one.shape);
  for (int rank = 0; rank < one.data; ++rank) (alone->loss(split_net_ids(0, rank)) / one.data).backward();
  std::mutex mutex;
  std::set<std::string> seen;
  run_ranks(one.data * one.tensor, [&](Ranks world) {
    Sharded sharded(one, world);
    sharded.run_passes(/*step=*/0);
    sharded.module->update_whole_parameters([&](const WholeParameter& whole) {
      const Tensor expected = alone->named_parameters()[whole.fqn].grad();
      EXPECT_TRUE(whole.gradient.allclose(expected, 1e-12, 1e-12)) << whole.fqn;
      const std::scoped_lock lock(mutex);
      seen.insert(whole.fqn);
    });
  });
  EXPECT_EQ(seen.size(), alone->parameters().size() - (one.shape.tied ? 1 : 0));
}

TEST_P(SplitOptimizers, SeeWholeParameters) {
  const Case& one = GetParam();
  const std::map<std::string, Tensor> expected = train_alone(one);
  std::mutex mutex;
  std::map<std::string, int> owners;
  run_ranks(one.data * one.tensor, [&](Ranks world) {
    Sharded sharded(one, world);
    Orthogonaliser optimizer;
    for (int step = 0; step < kSteps; ++step) {
      sharded.run_passes(step);
      if (step % 2) sharded.module->unshard();  // what was gathered before the update must not be used after it
      sharded.module->update_whole_parameters(
          [&](const WholeParameter& whole) { optimizer.update(whole.fqn, whole.value, whole.gradient); });
    }
    sharded.module->for_each_full_parameter([&](const std::string& fqn, const Tensor& weight) {
      EXPECT_TRUE(weight.allclose(expected.at(fqn), 1e-11, 1e-11))
          << fqn << ' ' << (weight - expected.at(fqn)).abs().max();
    });
    const std::scoped_lock lock(mutex);
    for (const auto& [name, momentum] : optimizer.momenta()) ++owners[name];
  });
  // Ranks that replicate a parameter update it alike.
  const int replicas = one.strategy == kNoShard ? one.data : 1;
  for (const char* split :
       {"embed.weight", "layers.0.up.weight", "layers.1.down.weight", "layers.1.attention.q.bias"}) {
    EXPECT_EQ(owners.at(split), replicas) << split;
  }
  EXPECT_EQ(owners.at("layers.0.norm.weight"), replicas * one.tensor);
}

}  // namespace
}  // namespace fsdp::split_optimizers_test
