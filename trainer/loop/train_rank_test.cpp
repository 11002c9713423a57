// Tests whole runs with ranks as threads: the results on a device are the same as on the CPU.
#include "loop/train_rank.h"

#include <gtest/gtest.h>

#include "support/devices/simulated_device.h"
#include "support/devices/test_device.h"
#include "testing/tiny_llama.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::train_rank_test {
namespace {

struct Variant {
  const char* name;
  std::function<void(Config&)> change;
};

class OnADevice : public ::testing::TestWithParam<Variant> {};

TEST_P(OnADevice, ARunLeavesTheSameFilesAsOnTheCpu) {
  testing::TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/true, /*seed=*/11);
  Config config = small_run(folder);
  GetParam().change(config);
  for (int world_size : {1, 3}) {
    const Left want = run_whole(config, folder, "cpu" + std::to_string(world_size), world_size);
    testing::DeviceKindGuard simulated(testing::DeviceKind::kSimulated);
    const Left got = run_whole(config, folder, "device" + std::to_string(world_size), world_size,
                               [](int rank) { return testing::simulated_device(rank); });
    EXPECT_EQ(got.metrics, want.metrics) << world_size << " ranks";
    EXPECT_EQ(want.metrics.size(), 5U);
    EXPECT_FALSE(want.weights.empty());
    EXPECT_TRUE(got.weights == want.weights) << world_size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, OnADevice,
    ::testing::Values(Variant{"plain", [](Config&) {}},
                      Variant{"bf16", [](Config& c) { c.precision.dtype = c10::kBFloat16; }},
                      Variant{"fp16",
                              [](Config& c) {
                                c.precision.dtype = c10::kHalf;
                                c.precision.fp16_init_scale = 1e30;
                              }},
                      Variant{"offload", [](Config& c) { c.sharding.cpu_offload = true; }},
                      Variant{"files", [](Config& c) { c.sharding.offload_path = c.model.path; }},
                      Variant{"from_rank_0", [](Config& c) { c.sharding.sync_module_states = true; }},
                      Variant{"fused_loss", [](Config& c) { c.model.fused_loss = true; }},
                      Variant{"by_document", [](Config& c) { c.model.attention_mask = AttentionMask::kBlockCausal; }},
                      Variant{"automatic",
                              [](Config& c) {
                                c.sharding.wrap_policy = UnitsBy::kAutoUnits;
                                c.sharding.auto_units_target_bytes = 4000;
                                c.steps.gradient_accumulation_steps = 2;
                              }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::trainer::train_rank_test
