// Trains on the planned device: shapes, memory and events without any computing.
#include "planner/device/planned_device.h"

#include <gmock/gmock.h>
#include <torch/nn.h>

#include <set>

#include "fsdp/fully_shard.h"
#include "optim/fused_adamw.h"
#include "planner/device/planned_memory.h"
#include "planner/ranks/planned_communicator.h"
#include "planner/testing/recording.h"

namespace fsdp::planner::planned_device_test {
namespace {

int64_t count(const Tape& tape, TapeKind kind) {
  return std::count_if(tape.entries().begin(), tape.entries().end(),
                       [&](const TapeEntry& entry) { return entry.kind == kind; });
}

TEST(PlannedDevice, TensorsHaveShapesAndAddressesButNoMemory) {
  Recording recording;
  const at::Tensor a = torch::empty({1 << 20, 1 << 10}, planned_device());
  const at::Tensor b = torch::mm(a.t(), a);
  EXPECT_EQ(b.sizes(), (std::vector<int64_t>{1 << 10, 1 << 10}));
  EXPECT_EQ(b.device(), planned_device());
  EXPECT_TRUE(PlannedMemory::get().is_planned(b.const_data_ptr()));
  EXPECT_EQ(count(recording.tape(), TapeKind::kKernel), 1);
  EXPECT_EQ(count(recording.tape(), TapeKind::kAllocation), 2);
}

TEST(PlannedDevice, ReadingMemoryEndsTheProgramWithTheOperator) {
  begin_planning();
  const at::Tensor a = torch::ones({1 << 20}, planned_device()).mul(2);
  EXPECT_EXIT(std::printf("%f", *a.const_data_ptr<float>()), ::testing::ExitedWithCode(1), "aten::mul");
}

TEST(PlannedDevice, ALinearModelTrains) {
  Recording recording;
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(), torch::nn::Linear(128, 64));
  Options options;
  options.communicator = make_planned_communicator(recording.tape(), 0, {.world = 4, .per_host = 2});
  options.device = planned_device();
  options.auto_wrap_policy = [](const WrapCandidate& candidate) { return !candidate.fqn.empty(); };
  auto sharded = fully_shard(*model, options);
  optim::FusedAdamW optimizer(sharded->parameters(), {});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = model->forward(torch::ones({8, 64}, planned_device())).sum();
    loss.backward();
    EXPECT_EQ(loss.item<double>(), 1);
    sharded->clip_grad_norm_(1.0);
    optimizer.step();
    sharded->zero_grad();
  }
  EXPECT_GT(count(recording.tape(), TapeKind::kCollective), 6);
}

// Returns the operators that attention on the device calls, forward and backward.
std::set<std::string> attention_operators(at::ScalarType dtype, int64_t key_heads, bool masked, int64_t width = 64) {
  Recording recording;
  const auto options = at::TensorOptions(dtype).device(planned_device());
  const at::Tensor query = torch::empty({2, 8, 128, width}, options).requires_grad_();
  const at::Tensor key = torch::empty({2, key_heads, 128, width}, options).requires_grad_();
  const auto mask = masked ? std::optional(torch::empty({128, 128}, options)) : std::nullopt;
  at::scaled_dot_product_attention(query, key, key, mask, 0.0, !masked, std::nullopt, key_heads != 8).sum().backward();
  std::set<std::string> names;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kKernel) names.insert(recording.tape().name(entry));
  }
  return names;
}

using ::testing::Contains;
const std::string kFlash = "aten::_scaled_dot_product_flash_attention_for_cpu";
const std::string kEfficient = "aten::_scaled_dot_product_efficient_attention";
const std::string kSoftmax = "aten::_softmax";

TEST(PlannedAttention, IsChosenAsOnAGpu) {
  EXPECT_THAT(attention_operators(at::kBFloat16, 8, false), Contains(kFlash));
  EXPECT_THAT(attention_operators(at::kBFloat16, 2, false), Contains(kFlash));
  EXPECT_THAT(attention_operators(at::kBFloat16, 8, true), Contains(kEfficient));
  EXPECT_THAT(attention_operators(at::kFloat, 8, false), Contains(kEfficient));
  EXPECT_THAT(attention_operators(at::kFloat, 2, false), Contains(kSoftmax));
  EXPECT_THAT(attention_operators(at::kBFloat16, 2, true), Contains(kSoftmax));
  EXPECT_THAT(attention_operators(at::kFloat, 8, false, 63), Contains(kSoftmax));
}

}  // namespace
}  // namespace fsdp::planner::planned_device_test
