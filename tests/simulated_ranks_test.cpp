// Sharded training on the simulated device, each rank on a device of its own, gives what it gives on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/device_stream.h"
#include "support/models.h"
#include "support/sharding.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::simulated_device;

using Weights = std::map<std::string, at::Tensor>;

struct Setting {
  ShardingStrategy strategy;
  bool mixed;
  bool on_side_stream;
};

Options options_of(const Setting& setting, const std::shared_ptr<Communicator>& comm, c10::Device device) {
  Options options;
  options.auto_wrap_policy = testing::every_module();
  options.communicator = comm;
  options.device = device;
  options.sharding_strategy = setting.strategy;
  if (setting.mixed) options.param_dtype = at::kBFloat16;
  return options;
}

// Two steps, each of a backward that does not communicate and one that does.
Weights train(const Setting& setting, const std::shared_ptr<Communicator>& comm, c10::Device device) {
  std::optional<CurrentStreamGuard> guard;
  if (setting.on_side_stream) guard.emplace(take_stream(device));
  testing::TinyLMImpl::Config config;
  config.tied = true;
  auto model = testing::make_tiny_lm(config);
  model->to(device);
  auto sharded = fully_shard(*model, options_of(setting, comm, device));
  torch::optim::AdamW optimizer(sharded->parameters());
  for (int step = 0; step < 2; ++step) {
    sharded->zero_grad();
    {
      auto no_sync = sharded->no_sync();
      model->loss(batch_of(comm->rank(), step + 10).to(device)).backward();
    }
    model->loss(batch_of(comm->rank(), step).to(device)).backward();
    sharded->clip_grad_norm_(0.5);
    optimizer.step();
  }
  Weights weights = testing::weights_of(*sharded);
  for (auto& [name, weight] : weights) weight = weight.cpu();
  return weights;
}

class SimulatedRanks : public ::testing::TestWithParam<std::tuple<int, ShardingStrategy, bool>> {};

TEST_P(SimulatedRanks, TrainAsOnTheCpu) {
  const auto& [size, strategy, mixed] = GetParam();
  const Setting setting{strategy, mixed, /*on_side_stream=*/size != 2};
  std::vector<Weights> want(static_cast<size_t>(size));
  testing::run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
    want[static_cast<size_t>(comm->rank())] = train(setting, comm, c10::kCPU);
  });
  testing::run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
    const Weights got = train(setting, comm, simulated_device(comm->rank()));
    testing::expect_same(got, want[static_cast<size_t>(comm->rank())]);
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, SimulatedRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(ShardingStrategy::kFullShard,
                                                              ShardingStrategy::kShardGradOp,
                                                              ShardingStrategy::kNoShard),
                                            ::testing::Bool()));

}  // namespace
}  // namespace fsdp
