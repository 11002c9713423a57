// Saves and loads state of models on a device whose streams are late, with shards on the device, in host memory and in
// files.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "base/device_stream.h"
#include "fsdp/state_dict.h"
#include "state/testing/state_runs.h"
#include "support/devices/simulated_device.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::state_on_device_test {
namespace {

using namespace testing;  // this project's namespace
using enum ShardingStrategy;
using World = std::shared_ptr<Communicator>;
using Values = std::map<std::string, torch::Tensor>;

enum class Place { kDevice, kHost, kFiles };

class StateOnADevice : public ::testing::TestWithParam<Place> {
 protected:
  void on_ranks(int ranks, const std::function<void(const World&, const std::function<void(Options&)>&)>& body) {
    const DeviceKindGuard simulated(DeviceKind::kSimulated);
    run_ranks(ranks, [&](const World& world) {
      body(world, [this](Options& options) {
        options.cpu_offload = GetParam() == Place::kHost;
        if (GetParam() == Place::kFiles) options.offload_path = folder_.path();
      });
    });
  }

  const testing::TemporaryFolder folder_;
};
std::string name_of_place(const ::testing::TestParamInfo<Place>& info) {
  return info.param == Place::kDevice ? "device" : info.param == Place::kHost ? "host" : "files";
}
INSTANTIATE_TEST_SUITE_P(All, StateOnADevice, ::testing::Values(Place::kDevice, Place::kHost, Place::kFiles),
                         name_of_place);

Values plain_values(uint64_t seed) {
  return values_of(*seeded([] { return Net(); }, seed));
}

double plain_loss(uint64_t seed, const torch::Tensor& x) {
  return seeded([] { return Net(); }, seed)->loss(x).item<double>();
}

TEST_P(StateOnADevice, ComesAndGoes) {
  on_ranks(2, [&](const World& world, const auto& change) {
    ShardedRun run({2, kFullShard, true, false}, world, 99, true, change);
    Values given;
    for (const auto& [name, value] : plain_values(17)) given[name] = value.clone().pin_memory();
    load_full_state_dict(*run.sharded, *run.net, given);
    for (auto& [name, value] : given) value.zero_();  // no read of it may be pending
    run.step(0);
    PlainRun plain(true, false);
    plain.step(0);
    expect_same(full_state_dict(*run.sharded, *run.net), values_of(*plain.net));

    const FullStateDict values = full_state_dict(*run.sharded, *run.net, {.offload_to_cpu = true});
    const ShardedStateDict parts = sharded_state_dict(*run.sharded, *run.net, {.offload_to_cpu = true});
    const FullOptimizerState state = full_optimizer_state(*run.sharded, *run.state, {.rank0_only = true});
    const LocalOptimizerState local = local_optimizer_state(*run.sharded, *run.state, {.offload_to_cpu = true});
    run.step(1);
    plain.step(1);
    const Values next = values_of(*plain.net);
    load_full_state_dict(*run.sharded, *run.net, values, {.from_rank0 = true});
    load_full_optimizer_state(*run.sharded, *run.state, state, {.from_rank0 = true});
    run.step(1);
    expect_same(full_state_dict(*run.sharded, *run.net), next);
    load_sharded_state_dict(*run.sharded, *run.net, parts);
    load_local_optimizer_state(*run.sharded, *run.state, local);
    run.step(1);
    expect_same(full_state_dict(*run.sharded, *run.net), next);
  });
}

// The host must not write to shards that the device has yet to read.
TEST_P(StateOnADevice, AForwardUnderWayKeepsItsValues) {
  on_ranks(1, [&](const World& world, const auto& change) {
    ShardedRun run({1, kFullShard, true, false}, world, 99, true, change);
    const torch::Tensor x = torch::sin(torch::arange(20, at::kDouble)).view({5, 4});
    const torch::Tensor here = x.to(test_device());
    enqueue_on_simulated_stream(base::native_stream(run.sharded->engine().streams().gather),
                                [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    const torch::Tensor loss = run.net->loss(here).detach();
    load_full_state_dict(*run.sharded, *run.net, plain_values(17));
    EXPECT_NEAR(loss.item<double>(), plain_loss(99, x), 1e-12);  // rounding depends on the address of a matrix
    EXPECT_NEAR(run.net->loss(here).item<double>(), plain_loss(17, x), 1e-12);
  });
}

}  // namespace
}  // namespace fsdp::state::state_on_device_test
