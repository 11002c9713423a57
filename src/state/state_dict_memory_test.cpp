// The memory that state dicts of models and optimizers take while they are made and loaded.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fsdp/state_dict.h"
#include "state/testing/state_runs.h"
#include "support/memory/counting_allocator.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::state_dict_memory_test {
namespace {

using namespace testing;  // this project's namespace
using World = std::shared_ptr<Communicator>;

// Eight blocks of the same size, each a unit.
void with_blocks(
    const std::function<void(const World&, ShardedModule&, torch::nn::Module&, int64_t unit_bytes)>& body) {
  run_ranks(2, [&](const World& world) {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(150, 101));
    Options options;
    options.communicator = world;
    options.auto_wrap_policy = every_module();
    auto sharded = fully_shard(*net, options);
    body(world, *sharded, *net, 4 * 151 * 101);
  });
}

// Returns the peak memory of both ranks together, in addition to the memory that they hold before.
int64_t peak_of(const World& world, CountedMemory& memory, const std::function<void()>& body) {
  world->barrier({"before", 0, Pass::kUser});
  const int64_t before = memory.current_bytes();
  if (world->rank() == 0) memory.reset_peak();
  world->barrier({"begin", 0, Pass::kUser});
  body();
  world->barrier({"end", 0, Pass::kUser});
  return memory.peak_bytes() - before;
}

TEST(MemoryOfStateDicts, IsAUnitAndTheResult) {
  CountedMemory memory;
  with_blocks([&](const World& world, ShardedModule& sharded, torch::nn::Module& net, int64_t unit) {
    for_each_full_tensor(sharded, net, [](const auto&, const auto&) {});  // one-time setup
    EXPECT_LT(peak_of(world, memory, [&] { for_each_full_tensor(sharded, net, [](const auto&, const auto&) {}); }),
              2 * unit + unit / 2);
    FullStateDict values;
    EXPECT_LT(peak_of(world, memory, [&] { values = full_state_dict(sharded, net, {.rank0_only = true}); }),
              8 * unit + 2 * unit + unit / 2);
    EXPECT_LT(peak_of(world, memory, [&] { load_full_state_dict(sharded, net, values, {.from_rank0 = true}); }),
              2 * unit + unit / 2);
  });
}

// At any time, each of the two ranks holds one whole tensor of one unit, in addition to the part that is sent.
TEST(MemoryOfStateDicts, OfAnOptimizerIsATensorAndTheResult) {
  CountedMemory memory;
  with_blocks([&](const World& world, ShardedModule& sharded, torch::nn::Module& net, int64_t unit) {
    optim::FusedAdamW optimizer(sharded.parameters(), {});
    for (torch::Tensor leaf : sharded.parameters()) leaf.mutable_grad() = torch::ones_like(leaf);
    optimizer.step();
    for (torch::Tensor leaf : sharded.parameters()) leaf.mutable_grad() = torch::Tensor();
    const auto state = optimizer.named_state();
    for_each_full_tensor(sharded, net, [](const auto&, const auto&) {});  // one-time setup
    FullOptimizerState values;
    EXPECT_LT(peak_of(world, memory, [&] { values = full_optimizer_state(sharded, *state, {.rank0_only = true}); }),
              16 * unit + 3 * unit + unit / 2);
    EXPECT_LT(peak_of(world, memory, [&] { load_full_optimizer_state(sharded, *state, values, {.from_rank0 = true}); }),
              2 * unit + unit / 2);
  });
}

}  // namespace
}  // namespace fsdp::state::state_dict_memory_test
