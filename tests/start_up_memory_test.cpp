// The memory that start-up takes: the shards and one unit at a time.
#include "fsdp/backends.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "support/memory/counting_allocator.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using namespace testing;  // of this project

// Each layer is a unit of `width` x `width` numbers of 4 bytes.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int64_t layers, int64_t width) {
    for (int64_t i = 0; i < layers; ++i) {
      register_module(c10::str("layer", i), torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    }
    apply([](torch::nn::Module& module) {
      if (auto* linear = module.as<torch::nn::Linear>()) torch::nn::init::normal_(linear->weight, 0, 0.02);
    });
  }
};
TORCH_MODULE(Deep);

// Frees the engines of modules that were destroyed, which happens when the next engine is made.
void forget_modules_that_are_gone() {
  torch::nn::Linear linear(1, 1);
  fully_shard(linear, one_rank_options());
}

TEST(StartUpMemory, IsTheShardsAndOneUnit) {
  constexpr int64_t kWidth = 256, kLayers = 12, kUnit = kWidth * kWidth * 4;
  constexpr int kRanks = 4;
  Options options = one_rank_options();
  options.communicator = make_fake_communicator(0, kRanks);
  forget_modules_that_are_gone();
  CountedMemory memory;
  torch::manual_seed(1);
  Deep deferred = deferred_init([&] { return Deep(kLayers, kWidth); });
  EXPECT_LT(memory.peak_bytes(), kUnit / 8);
  auto sharded = fully_shard(deferred, options);
  constexpr int64_t kShards = kLayers * kUnit / kRanks;
  EXPECT_GE(memory.current_bytes(), kShards);
  EXPECT_LT(memory.current_bytes(), kShards + kUnit / 8);
  EXPECT_LT(memory.peak_bytes(), kShards + kUnit + kUnit / 4);  // a quarter for generator states
}

TEST(StartUpMemory, OfAWholeModuleIsFreedUnitByUnit) {
  constexpr int64_t kWidth = 256, kLayers = 12, kUnit = kWidth * kWidth * 4;
  Options options = one_rank_options();
  options.communicator = make_fake_communicator(0, 4);
  forget_modules_that_are_gone();
  CountedMemory memory;
  Deep whole(kLayers, kWidth);
  EXPECT_GE(memory.current_bytes(), kLayers * kUnit);
  memory.reset_peak();
  auto sharded = fully_shard(whole, options);
  EXPECT_LT(memory.peak_bytes(), kLayers * kUnit + kUnit / 2);
  EXPECT_LT(memory.current_bytes(), kLayers * kUnit / 4 + kUnit / 8);
}

TEST(StartUpMemory, OfARankThatReceivesIsTheSame) {
  constexpr int64_t kWidth = 256, kLayers = 12, kUnit = kWidth * kWidth * 4;
  Options options = one_rank_options();
  options.communicator = make_fake_communicator(1, 4);
  options.sync_module_states = true;
  forget_modules_that_are_gone();
  CountedMemory memory;
  Deep deferred = deferred_init([&] { return Deep(kLayers, kWidth); });
  auto sharded = fully_shard(deferred, options);
  EXPECT_LT(memory.peak_bytes(), kLayers * kUnit / 4 + kUnit + kUnit / 8);
}

}  // namespace
}  // namespace fsdp
