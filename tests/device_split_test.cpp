// Tests split weights and sequences on a device with streams, where the exchange of activations runs late on streams of
// its own and is ordered by events only: the results equal those that the same ranks compute on the CPU.
#include "support/devices/test_device.h"
#include "support/nets/split_net.h"
#include "support/ranks/nccl_ranks.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::device_split_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Change = std::function<void(Options& options)>;
using Weights = std::map<std::string, torch::Tensor>;

struct Trained {
  std::vector<double> losses, norms;
  Weights weights;  // on the host
};

struct Case {
  const char* name;
  int data;
  SplitNetShape shape;
  Change change = [](Options&) {};
  bool over_gloo = false;
};

Trained train(const Case& one, const Ranks& world, const Change& change) {
  DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", one.data}, {"tp", 2}});
  SplitNet net = make_split_net(one.shape);
  net->to(test_device());
  Options options = split_net_options(mesh, one.shape);
  change(options);
  const auto sharded = fully_shard(*net, options);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(0.02).eps(1e-3));
  Trained result;
  for (int step = 0; step < 3; ++step) {
    sharded->zero_grad();
    const torch::Tensor loss = net->loss(split_net_ids(step, mesh.rank("dp_shard")).to(test_device()));
    loss.backward();
    result.norms.push_back(sharded->clip_grad_norm_(0.1).item<double>());
    optimizer.step();
    result.losses.push_back(loss.item<double>());
  }
  sharded->for_each_full_parameter(
      [&](const std::string& fqn, const torch::Tensor& full) { result.weights[fqn] = full.cpu().clone(); });
  return result;
}

class DeviceSplit : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!comm::nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
    fresh_fake_nccl();
  }
};

constexpr SplitNetShape kWhole{6, 3, false, false}, kTied{6, 3, true, true}, kSequence{6, 3, true, true, true};
void on_the_host(Options& options) { options.cpu_offload = true; }
INSTANTIATE_TEST_SUITE_P(All, DeviceSplit,
                         ::testing::Values(Case{"weights", 1, kWhole}, Case{"tied", 2, kTied},
                                           Case{"sequence", 1, kSequence}, Case{"sequence_over_two", 2, kSequence},
                                           Case{"shards_on_the_host", 2, kSequence, on_the_host},
                                           Case{"over_gloo", 2, kSequence, [](Options&) {}, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceSplit, TrainsAsOnTheCpu) {
  const Case& one = GetParam();
  const int ranks = 2 * one.data;
  std::vector<Trained> expected(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Ranks& world) {
    expected[static_cast<size_t>(world->rank())] = train(one, world, [](Options&) {});
  });
  const auto compare = [&](const Ranks& world) {
    const Trained got = train(one, world, one.change);
    const Trained& want = expected[static_cast<size_t>(world->rank())];
    for (size_t step = 0; step < want.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], want.losses[step], 1e-12) << step;
      EXPECT_NEAR(got.norms[step], want.norms[step], 1e-12) << step;
    }
    for (const auto& [fqn, weight] : want.weights) {
      EXPECT_TRUE(got.weights.at(fqn).allclose(weight, 1e-11, 1e-12)) << fqn;
    }
  };
  const DeviceKindGuard simulated(DeviceKind::kSimulated);
  if (one.over_gloo) {
    run_ranks(ranks, compare);
  } else {
    run_nccl_ranks_on_own_devices(ranks, compare);
  }
}

}  // namespace
}  // namespace fsdp::device_split_test
