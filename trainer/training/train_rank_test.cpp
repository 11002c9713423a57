// Whole runs of ranks as threads: on a device they give what they give on the CPU.
#include "training/train_rank.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/simulated_device.h"
#include "support/test_device.h"
#include "support/thread_ranks.h"
#include "testing/test_folder.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer {
namespace {

Config base_config(const TestFolder& folder) {
  Config config;
  config.model_path = folder.path("model");
  config.dataset = "dummy:40";
  config.eval_dataset = "dummy:7";
  config.max_seq_length = 9;
  config.train_batch_size = 2;
  config.max_steps = 4;
  config.learning_rate = 1e-2;
  config.weight_decay = 0.1;
  config.clip_grad_norm = 0.5;
  config.dtype = "fp32";
  config.do_eval = true;
  config.save_final = true;
  return config;
}

// What a run leaves: figures that do not depend on time or memory, and the model's file.
struct Left {
  std::vector<std::string> metrics;
  std::string weights;
};

Left run(Config config, const TestFolder& folder, const std::string& name, int world_size,
         const std::function<c10::Device(int rank)>& device_of) {
  config.output_dir = folder.path(name);
  testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> world) {
    train_at(config, open_training_inputs(config, world_size), {device_of(world->rank()), world, ""}, {});
  });
  Left left;
  std::istringstream lines(folder.read(name + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    auto values = nlohmann::json::parse(line);
    for (const char* key : {"tokens_per_second", "tflops", "peak_memory_bytes"}) values.erase(key);
    left.metrics.push_back(values.dump());
  }
  left.weights = folder.read(name + "/final/model.safetensors");
  return left;
}

struct Variant {
  const char* name;
  std::function<void(Config&)> change;
};

class OnADevice : public ::testing::TestWithParam<Variant> {};

TEST_P(OnADevice, ARunLeavesWhatItLeavesOnTheCpu) {
  TestFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/true, /*seed=*/11);
  Config config = base_config(folder);
  GetParam().change(config);
  for (int world_size : {1, 3}) {
    const Left want =
        run(config, folder, "cpu" + std::to_string(world_size), world_size, [](int) { return c10::Device(c10::kCPU); });
    testing::DeviceKindGuard simulated(testing::DeviceKind::kSimulated);
    const Left got = run(config, folder, "device" + std::to_string(world_size), world_size,
                         [](int rank) { return testing::simulated_device(rank); });
    EXPECT_EQ(got.metrics, want.metrics) << world_size << " ranks";
    EXPECT_EQ(want.metrics.size(), 5U);
    EXPECT_FALSE(want.weights.empty());
    EXPECT_TRUE(got.weights == want.weights) << world_size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, OnADevice,
                         ::testing::Values(Variant{"plain", [](Config&) {}},
                                           Variant{"bf16", [](Config& c) { c.dtype = "bf16"; }},
                                           Variant{"fp16",
                                                   [](Config& c) {
                                                     c.dtype = "fp16";
                                                     c.fp16_init_scale = 1e30;
                                                   }},
                                           Variant{"offload", [](Config& c) { c.cpu_offload = true; }},
                                           Variant{"files", [](Config& c) { c.offload_path = c.model_path; }},
                                           Variant{"from_rank_0", [](Config& c) { c.sync_module_states = true; }},
                                           Variant{"automatic",
                                                   [](Config& c) {
                                                     c.wrap_policy = "auto_units";
                                                     c.auto_units_target_bytes = 4000;
                                                     c.gradient_accumulation_steps = 2;
                                                   }}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp::trainer
