// Parameters that forward reshards to a smaller group, among which backward gathers (ReshardAfterForward).
#include "engine/engine.h"
#include "fsdp/fully_shard.h"
#include "support/nets/even_chain.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::EvenChain;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::weights_after_steps;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;

constexpr int64_t kWidth = EvenChain::kWidth;
constexpr int kLayers = EvenChain::kLayers;
constexpr uint64_t M = EvenChain::kBytes;
constexpr uint64_t kAgreement = EvenChain::kAgreement;

TEST(ReshardToASmallerGroup, GathersBackwardAmongNRanks) {
  for (bool orig : {true, false}) {
    run_ranks(4, [orig](Ranks world) {
      Options options = testing::block_options(world, kFullShard, orig);
      options.param_dtype = at::kFloat;
      auto want = weights_after_steps(world, options);
      options.reshard_after_forward = 2;
      expect_same(weights_after_steps(world, options), want);
    });
  }
}

TEST(ReshardToASmallerGroup, SendsLessInBackward) {
  const auto body = [](Ranks world) {
    auto chain = EvenChain::make();
    Options options;
    options.communicator = world;
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    options.reshard_after_forward = 2;
    auto sharded = fully_shard(*chain, options);
    sharded->diagnostics().verify_sharding();
    uint64_t setup = world->bytes_sent();
    torch::Tensor loss = chain->forward(torch::ones({2, kWidth}).requires_grad_()).sum();
    const uint64_t gather = M * 7 / 8;
    EXPECT_EQ(world->bytes_sent() - setup, gather);
    loss.backward();
    // The gathers of backward went over the pairs; the reduce-scatter over all ranks.
    EXPECT_EQ(world->bytes_sent() - setup, 2 * gather + 7 * kAgreement);
    EXPECT_EQ(sharded->diagnostics().stats().all_gathers, 2 * kLayers - 1);
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    engine::Unit& first = *sharded->engine().units().front();
    base::MutexLock lock(first.mutex);
    const Communicator& pair = *first.buffers.park_group();
    EXPECT_EQ(pair.size(), 2);
    EXPECT_EQ(pair.bytes_sent(), (M - M / kLayers) / 2);
  };
  run_ranks(8, body, {.communicator = "gloo"});  // over shared memory, nothing is sent or parked
}

// Parts parked for the smaller group are not used after the shards have changed.
TEST(ReshardToASmallerGroup, ForgetsStaleParameters) {
  run_ranks(4, [](Ranks world) {
    auto model = make_tiny_lm({});
    Options options = testing::block_options(world);
    options.reshard_after_forward = 2;
    auto sharded = fully_shard(*model, options);
    auto forward = [&] {
      torch::NoGradGuard no_grad;
      return model->forward(batch_of(0, 0));
    };
    torch::Tensor first = forward();
    EXPECT_TRUE(torch::equal(forward(), first));
    for (const ShardSlice& slice : sharded->shard_slices()) {
      torch::NoGradGuard no_grad;
      slice.data.mul_(2);
    }
    torch::Tensor doubled = forward();
    EXPECT_FALSE(torch::allclose(doubled, first));
    sharded->with_full_params([&] {
      torch::NoGradGuard no_grad;
      for (torch::Tensor parameter : model->parameters()) parameter.mul_(0.5);
    });
    EXPECT_TRUE(torch::equal(forward(), first));
  });
}

TEST(ReshardToASmallerGroup, MustFitTheShardGroup) {
  run_ranks(4, [](Ranks world) {
    for (int group : {0, 1, 3, 4, 8}) {
      Options options;
      options.communicator = world;
      options.reshard_after_forward = group;
      expect_error([&] { fully_shard(*make_tiny_lm({}), options); },
                   {"reshard_after_forward", c10::str(group).c_str(), "must divide the 4 ranks"});
    }
    Options kept;
    kept.communicator = world;
    kept.sharding_strategy = kShardGradOp;
    kept.reshard_after_forward = 2;
    expect_error([&] { fully_shard(*make_tiny_lm({}), kept); }, {"reshard_after_forward", "SHARD_GRAD_OP"});
  });
}

}  // namespace
}  // namespace fsdp
