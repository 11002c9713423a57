// Tests the lower bound on a run's memory, and the refusal of runs that cannot fit.
#include "setup/memory_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/errors.h"
#include "models/pretrained.h"
#include "models/testing/small_models.h"
#include "setup/training_inputs.h"
#include "support/faults/error_of.h"

namespace fsdp::trainer::memory_needs_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MemoryNeedsTest : public ::testing::Test {
 protected:
  MemoryNeedsTest() {
    config_.model.definition = models::small_gpt2();
    config_.data.dataset = "dummy:64";
    config_.data.max_seq_length = 8;
  }
  MemoryNeeds needs(const HostRanks& ranks) {
    return memory_needs(config_, inputs(ranks.world).model->module(), ranks);
  }
  TrainingInputs inputs(int64_t world_size = 1) const { return open_training_inputs(config_, world_size); }
  std::string error(int64_t bytes, const HostRanks& ranks = {}) const {
    const TrainingInputs opened = inputs();
    return testing::error_of([&] {
      check_memory(config_, opened.model->module(), *opened.train, ranks, {.nbytes = bytes, .limit = "a test"});
    });
  }
  // Returns the number of elements of the model, each counted once.
  int64_t elements() const {
    int64_t sum = 0;
    for (const at::Tensor& parameter : inputs().model->module().parameters()) sum += parameter.numel();
    return sum;
  }

  Config config_;
};

TEST_F(MemoryNeedsTest, CountsStatesByDtypeAndStrategy) {
  const int64_t n = elements();
  EXPECT_EQ(needs({.local = 2, .world = 2}).parameters, 4 * n);
  EXPECT_EQ(needs({.local = 2, .world = 2}).gradients, 4 * n);
  EXPECT_EQ(needs({.local = 2, .world = 2}).optimizer_state, 8 * n);
  EXPECT_GT(needs({.local = 2, .world = 2}).gathered, 0);
  EXPECT_EQ(needs({.local = 2, .world = 8}).parameters, n);
  config_.sharding.strategy = ShardingStrategy::kNoShard;
  EXPECT_EQ(needs({.local = 2, .world = 8}).optimizer_state, 16 * n);
  config_.sharding.strategy = ShardingStrategy::kHybridShard;
  EXPECT_EQ(needs({.local = 2, .world = 8}).parameters, 4 * n) << "a copy on each host";
  config_.sharding.factor = 4;
  EXPECT_EQ(needs({.local = 8, .world = 8}).parameters, 8 * n);
  config_.parallelism.pipeline_degree = 2;
  EXPECT_EQ(needs({.local = 8, .world = 8}).parameters, 4 * n) << "each stage is half of the model";
  config_.parallelism.pipeline_degree = 1;
  config_.precision.master_dtype = c10::kBFloat16;
  EXPECT_EQ(needs({.local = 8, .world = 8}).optimizer_state, 8 * n);
  EXPECT_EQ(needs({.local = 8, .world = 8}).gathered, 0) << "shards are what is gathered";
}

TEST_F(MemoryNeedsTest, LeavesOutMemoryOfDevicesAndFiles) {
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_EQ(needs({.device = gpu}).total(), 0);
  config_.sharding.cpu_offload = true;
  EXPECT_EQ(needs({.device = gpu}).total(), 16 * elements());
  config_.sharding.offload_path = "/somewhere";
  EXPECT_EQ(needs({}).parameters + needs({}).optimizer_state, 0);
  EXPECT_EQ(needs({}).gradients, 4 * elements());
  config_.precision.keep_low_precision_grads = true;
  EXPECT_EQ(needs({}).gradients, 2 * elements());
}

TEST_F(MemoryNeedsTest, AsksTheOptimizer) {
  config_.optimizer.name = "sgd";
  EXPECT_EQ(needs({}).optimizer_state, 0);
  config_.optimizer.sgd_momentum = 0.9;
  EXPECT_EQ(needs({}).optimizer_state, 4 * elements());
  EXPECT_THAT(error(0), HasSubstr(", SGD's state "));
  config_.optimizer.name = "adamw";
  EXPECT_THAT(error(0), HasSubstr(", AdamW's state "));
}

TEST_F(MemoryNeedsTest, AModelThatCannotFitIsRefusedWithFigures) {
  const int64_t total = needs({}).total();
  EXPECT_EQ(error(total + (1 << 20)), "no error");
  EXPECT_THAT(error(0),
              AllOf(HasSubstr("key \"model\""), HasSubstr("1 of 1 rank(s) need at least "), HasSubstr("gradients "),
                    HasSubstr("a test"), HasSubstr("\"check_memory\" to false"), HasSubstr("offload_path")));
  config_.sharding.check_memory = false;
  EXPECT_EQ(error(0), "no error");
}

TEST_F(MemoryNeedsTest, SoIsAnOrderOfSamples) {
  config_.data.dataset = "dummy:1000000000000";
  const int64_t model = needs({}).total() + (1 << 20);
  EXPECT_THAT(error(model), AllOf(HasSubstr("key \"dataset\": \"dummy:1000000000000\" has 1000000000000 samples"),
                                  HasSubstr("14901 GiB")));
  config_.data.shuffle = false;
  EXPECT_THAT(error(model), HasSubstr("7451 GiB"));
}

}  // namespace
}  // namespace fsdp::trainer::memory_needs_test
