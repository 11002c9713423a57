// Trains on the planned device: shapes, memory and events without any computing.
#include "planner/device/planned_device.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "fsdp/fully_shard.h"
#include "optim/fused_adamw.h"
#include "planner/device/planned_memory.h"
#include "planner/ranks/planned_communicator.h"
#include "planner/tape/tape.h"

namespace fsdp::planner::planned_device_test {
namespace {

// Records on a tape while it lives.
class Recording {
 public:
  Recording() {
    begin_planning();
    PlannedMemory::get().set_log(&tape_);
  }
  ~Recording() { PlannedMemory::get().set_log(nullptr); }
  Tape& tape() { return tape_; }

 private:
  Tape tape_;
};

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

}  // namespace
}  // namespace fsdp::planner::planned_device_test
