// Tests pipelines over NCCL on a device with streams, where messages wait for their receivers and are ordered by events
// only: ranks train as those without a pipeline do on the CPU, and no circle of waiting ranks closes.
#include "pipeline/testing/stages.h"
#include "support/devices/test_device.h"
#include "support/ranks/nccl_ranks.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::device_pipeline_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using enum ShardingStrategy;

struct Case {
  const char* schedule;
  int ranks;
  int stages_per_rank;
  int micro_batches;
  int data_ranks = 1;
};

class DevicePipeline : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!comm::nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
    fresh_fake_nccl();
  }
};

INSTANTIATE_TEST_SUITE_P(, DevicePipeline,
                         ::testing::Values(Case{"GPipe", 2, 1, 4}, Case{"1F1B", 2, 1, 4}, Case{"1F1B", 3, 1, 5},
                                           Case{"1F1B", 2, 1, 4, 2}, Case{"Interleaved1F1B", 2, 2, 4},
                                           Case{"Interleaved1F1B", 2, 3, 8}, Case{"InterleavedZeroBubble", 2, 2, 4},
                                           Case{"ZBVZeroBubble", 2, 2, 4}, Case{"ZBVZeroBubble", 3, 2, 6}),
                         [](const auto& info) {
                           const Case& one = info.param;
                           return c10::str(one.schedule, "_", one.ranks, "_", one.stages_per_rank, "_",
                                           one.micro_batches, "_", one.data_ranks);
                         });

// With the initial weights, the losses of the first step.
void expect_evaluates(StagesOfRank& stages, const Case& one) {
  const torch::NoGradGuard no_grad;
  Blocks whole(0, kBlocks);
  const auto outputs = stages.pipeline().evaluate();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const torch::Tensor input = samples(0, static_cast<int>(i), stages.mesh().rank("dp_shard")).to(torch::kFloat);
    EXPECT_EQ(outputs[i].back().item<float>(), loss_of(whole.forward(input), one.micro_batches).item<float>()) << i;
  }
}

TEST_P(DevicePipeline, TrainsAsWithoutAPipelineOnTheCpu) {
  const Case& one = GetParam();
  for (const ShardingStrategy strategy : {kShardGradOp, kFullShard}) {
    std::vector<Training> alone(static_cast<size_t>(one.data_ranks));
    run_ranks(one.data_ranks, [&](const Ranks& world) {
      alone[static_cast<size_t>(world->rank())] = train_sharded(world, one.micro_batches, options_of({}, strategy));
    });
    const DeviceKindGuard simulated(DeviceKind::kSimulated);
    run_nccl_ranks_on_own_devices(one.ranks * one.data_ranks, [&](const Ranks& world) {
      StagesOfRank stages(
          world, make_pipeline_schedule(one.schedule, one.ranks, one.stages_per_rank, one.micro_batches), strategy);
      expect_evaluates(stages, one);
      const Training pipelined = stages.train();
      expect_equal(pipelined, alone[static_cast<size_t>(stages.mesh().rank("dp_shard"))], one.schedule);
    });
  }
}

}  // namespace
}  // namespace fsdp::device_pipeline_test
