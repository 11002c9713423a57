// Tests shards that lie end to end in memory that ranks share: gathers move no data, results equal those of ranks that
// send, and no rank writes data that another rank still reads.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "engine/engine.h"
#include "optim/fused_adamw.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::block_options;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::weights_of;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, torch::Tensor>;

constexpr int64_t kPlenty = int64_t{1} << 30;  // of memory: gathered units are kept

void with_shared_memory(int ranks, const std::function<void(Ranks)>& body, int64_t spare_memory = 0) {
  testing::run_ranks(ranks, body, {.communicator = "shm", .spare_memory = spare_memory});
}

torch::Tensor forward(testing::TinyLM& model, int64_t step, int rank) { return model->forward(batch_of(rank, step)); }

// ---------------------------------------------------------------- results

Weights weights_after_training(const std::string& communicator, int ranks, const std::function<void(Options&)>& set,
                               int64_t spare_memory = 0) {
  Weights weights;
  testing::run_ranks(ranks,
                     [&](Ranks world) {
                       auto model = make_tiny_lm({});
                       Options options = block_options(world);
                       set(options);
                       auto sharded = fully_shard(*model, options);
                       torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(0.01));
                       for (int step = 0; step < 4; ++step) {
                         sharded->zero_grad();
                         for (int pass = 0; pass < 2; ++pass) {
                           sharded->set_requires_gradient_sync(pass == 1);
                           forward(model, 2 * step + pass, world->rank()).pow(2).mean().backward();
                         }
                         sharded->clip_grad_norm_(0.5);
                         optimizer.step();
                       }
                       const Weights mine = weights_of(*sharded);
                       if (world->rank() == 0) weights = mine;
                     },
                     {.communicator = communicator, .spare_memory = spare_memory});
  return weights;
}

struct Setting {
  const char* name;
  void (*set)(Options&);
};
const std::vector<Setting> kSettings = {
    {"full_shard", [](Options&) {}},
    {"shard_grad_op", [](Options& options) { options.sharding_strategy = ShardingStrategy::kShardGradOp; }},
    {"no_shard", [](Options& options) { options.sharding_strategy = ShardingStrategy::kNoShard; }},
    {"flat_parameters", [](Options& options) { options.use_orig_params = false; }},
    {"bf16", [](Options& options) { options.param_dtype = at::kBFloat16; }},
    {"fp32_reduced_in_bf16", [](Options& options) { options.reduce_dtype = at::kBFloat16; }},
    {"rows", [](Options& options) { options.shard_cut = ShardCut::kRows; }},
    {"rows_in_bf16",
     [](Options& options) {
       options.shard_cut = ShardCut::kRows;
       options.param_dtype = at::kBFloat16;
     }},
    {"keep_memory", [](Options& options) { options.keep_memory = true; }},
    {"auto_units",
     [](Options& options) {
       options.auto_wrap_policy = {};
       options.auto_units = AutoUnits{};
     }},
};

class SharedShards : public ::testing::TestWithParam<std::tuple<int, Setting>> {};

// Both communicators add in rank order, so results are bit-equal for any number of ranks.
TEST_P(SharedShards, TrainAsRanksThatSend) {
  const auto& [ranks, setting] = GetParam();
  const Weights want = weights_after_training("gloo", ranks, setting.set);
  expect_same(weights_after_training("shm", ranks, setting.set), want);
  expect_same(weights_after_training("shm", ranks, setting.set, kPlenty), want);
}

INSTANTIATE_TEST_SUITE_P(All, SharedShards,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kSettings)),
                         [](const auto& info) {
                           return c10::str(std::get<1>(info.param).name, "_", std::get<0>(info.param), "ranks");
                         });

// ---------------------------------------------------------------- nothing is moved

TEST(SharedShardsMemory, ParametersAreReadWhereTheShardsLie) {
  with_shared_memory(3, [](Ranks world) {
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world));
    sharded->pin({}, [] {});  // shares the shards
    const uint64_t sent = world->bytes_sent();
    sharded->pin({}, [&] {
      for (const auto& unit : sharded->engine().units()) {
        const flat::FlatParameter& flat = *unit->flat_parameters().front();
        const char* whole = static_cast<const char*>(flat.shared().const_data_ptr());
        EXPECT_EQ(flat.shard().const_data_ptr(), whole + world->rank() * flat.layout().shard_numel() * 4);
        for (int64_t i = 0; i < flat.layout().num_parameters(); ++i) {
          EXPECT_EQ(flat.parameters()[i].tensor.data_ptr(), whole + flat.layout().offset(i) * 4);
        }
      }
    });
    EXPECT_EQ(world->bytes_sent(), sent);
    EXPECT_EQ(sharded->diagnostics().stats().peak_gathered_bytes, 0);
  });
}

TEST(SharedShardsMemory, AShardKeepsNoMoreThanItself) {
  with_shared_memory(2, [](Ranks world) {
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world));
    for (const auto& unit : sharded->engine().units()) {
      const at::Tensor& shard = unit->flat_parameters().front()->shard();
      EXPECT_EQ(shard.storage().nbytes(), shard.nbytes()) << "what is saved is this rank's alone";
    }
  });
}

// The parameter has 128 GiB, of which no rank has allocated anything yet. The error is thrown before the first gather.
TEST(SharedShardsMemory, ThatIsWantingIsAnErrorAtTheStart) {
  struct LargeImpl : torch::nn::Module {
    LargeImpl() { register_parameter("weight", torch::empty({1 << 18, 1 << 17}, torch::kMeta)); }
  };
  with_shared_memory(2, [](Ranks world) {
    LargeImpl model;
    Options options;
    options.communicator = world;
    options.device = torch::kCPU;
    auto sharded = fully_shard(model, options);
    expect_error([&] { sharded->unshard(); }, {"rank 0", "'shards'", "MiB (", "are left"});
  });
}

// ---------------------------------------------------------------- lower precision

// Each rank casts its part, and all ranks read the same memory.
TEST(PublishedParameters, AreReadWhereEachRankHasCastItsPart) {
  with_shared_memory(3, [](Ranks world) {
    auto model = make_tiny_lm({});
    const Weights whole = weights_of(*model);
    Options options = block_options(world);
    options.param_dtype = at::kBFloat16;
    auto sharded = fully_shard(*model, options);
    sharded->pin({}, [] {});  // ranks compare their operations once, here
    const uint64_t sent = world->bytes_sent();
    sharded->pin({}, [&] {
      for (const auto& unit : sharded->engine().units()) {
        const flat::FlatParameter& flat = *unit->flat_parameters().front();
        ASSERT_TRUE(flat.publishes());
        EXPECT_FALSE(flat.shared().defined());
        const char* base = static_cast<const char*>(flat.shared_unsharded().const_data_ptr());
        for (int64_t i = 0; i < flat.layout().num_parameters(); ++i) {
          const flat::ShardedParameter& parameter = flat.parameters()[i];
          EXPECT_EQ(parameter.tensor.data_ptr(), base + flat.layout().offset(i) * 2);
          EXPECT_TRUE(torch::equal(parameter.tensor.detach().clone(), whole.at(parameter.fqn).to(at::kBFloat16)));
        }
      }
    });
    EXPECT_EQ(world->bytes_sent(), sent);
    EXPECT_EQ(sharded->diagnostics().stats().peak_gathered_bytes, 0);
  });
}

// A mark in memory that the ranks share shows whether a rank writes its part anew: backward does not, unless somebody
// has asked for a pointer to write to the shard. Forward does, and so sees writes through a pointer that was kept.
void expect_published_once(at::ScalarType dtype, ShardCut cut) {
  with_shared_memory(
      2,
      [&](Ranks world) {
        auto model = make_tiny_lm({});
        Options options = block_options(world);
        options.shard_cut = cut;
        options.param_dtype = dtype;
        auto sharded = fully_shard(*model, options);
        const auto& units = sharded->engine().units();
        const auto inner = std::find_if(units.begin(), units.end(), [](const auto& unit) { return !unit->is_root(); });
        const flat::FlatParameter& flat = *(*inner)->flat_parameters().front();
        ASSERT_TRUE(flat.publishes());
        int64_t i = 0;  // the first parameter of which this rank has rows
        while (flat.slice(i).numel() == 0) ++i;
        const int64_t offset = flat.slice(i).shard_offset;
        float* kept = static_cast<float*>(const_cast<void*>(flat.shard().const_data_ptr())) + offset;
        at::Tensor shown = flat.shared_unsharded().narrow(0, flat.layout().offset(i) + flat.slice(i).begin, 1);
        for (int64_t step = 0; step < 4; ++step) {
          *kept = static_cast<float>(step);
          const torch::Tensor loss = forward(model, step, world->rank()).pow(2).mean();
          sharded->reshard();
          EXPECT_EQ(shown.item<float>(), static_cast<float>(step));
          world->barrier({"all have read", 0, Pass::kUser});
          shown.fill_(42);
          if (step == 2) static_cast<float*>(flat.shard().mutable_data_ptr())[offset] = 7;
          loss.backward();
          EXPECT_EQ(shown.item<float>(), step == 2 ? 7 : 42) << step;
        }
      },
      kPlenty);
}

TEST(PublishedParameters, BackwardReadsForwardsCopy) { expect_published_once(at::kFloat, ShardCut::kRows); }
TEST(PublishedParameters, BackwardReadsForwardsCast) { expect_published_once(at::kBFloat16, ShardCut::kFlat); }
TEST(PublishedParameters, BackwardReadsForwardsCastOfRows) { expect_published_once(at::kBFloat16, ShardCut::kRows); }

TEST(PublishedParameters, OverSeveralHostsAreTheSameWhetherKeptOrNot) {
  const auto low = [](Options& options) { options.param_dtype = at::kBFloat16; };
  expect_same(weights_after_training("hosts", 4, low, kPlenty), weights_after_training("hosts", 4, low));
}

// ---------------------------------------------------------------- writes

// A layer that sleeps for `delay` between the uses of its two parameters.
struct SlowLayerImpl : torch::nn::Module {
  SlowLayerImpl() {
    weight = register_parameter("weight", testing::numbers({5, 5}));
    bias = register_parameter("bias", testing::numbers({5}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x.mm(weight);
    std::this_thread::sleep_for(delay);
    return y + bias;
  }
  torch::Tensor weight, bias;
  std::chrono::milliseconds delay{0};
};
TORCH_MODULE(SlowLayer);

// Rank 1 is still in its last layer when the others write: it must compute with the values from before the writes.
void expect_unharmed(const std::function<void(ShardedModule&)>& write) {
  with_shared_memory(3, [&](Ranks world) {
    torch::NoGradGuard no_grad;
    torch::nn::Sequential model{SlowLayer(), SlowLayer()};
    const torch::Tensor input = testing::numbers({2, 5}), want = model->forward(input);
    Options options;
    options.communicator = world;
    options.auto_wrap_policy = module_class_policy<SlowLayerImpl>();
    auto sharded = fully_shard(*model, options);
    if (world->rank() == 1) model->ptr<SlowLayerImpl>(1)->delay = std::chrono::milliseconds(30);
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(torch::equal(model->forward(input), want)) << "round " << round;
      Weights before;
      for (const auto& [name, leaf] : sharded->named_parameters()) before[name] = leaf.detach().clone();
      write(*sharded);
      world->barrier({"all have computed and written", static_cast<uint64_t>(round), Pass::kUser});
      for (auto& [name, leaf] : sharded->named_parameters()) leaf.detach().copy_(before.at(name));
    }
  });
}

TEST(SharedShardsWrites, InPlaceOperators) {
  expect_unharmed([](ShardedModule& sharded) {
    for (const torch::Tensor& leaf : sharded.parameters()) leaf.detach().mul_(3);
  });
}

TEST(SharedShardsWrites, ThroughData) {
  expect_unharmed([](ShardedModule& sharded) {
    for (const torch::Tensor& leaf : sharded.parameters()) leaf.data().view({-1}).fill_(7);
  });
}

TEST(SharedShardsWrites, ListsAndOutputs) {
  expect_unharmed([](ShardedModule& sharded) { torch::_foreach_mul_(sharded.parameters(), 3.0); });
  expect_unharmed([](ShardedModule& sharded) {
    for (torch::Tensor leaf : sharded.parameters()) torch::zeros_out(leaf, leaf.sizes());
  });
}

TEST(SharedShardsWrites, SlicesOfShards) {
  expect_unharmed([](ShardedModule& sharded) {
    for (const ShardSlice& slice : sharded.shard_slices()) slice.data.zero_();
  });
}

TEST(SharedShardsWrites, Optimizers) {
  const auto set_gradients = [](ShardedModule& sharded) {
    for (torch::Tensor leaf : sharded.parameters()) leaf.mutable_grad() = torch::ones_like(leaf);
  };
  expect_unharmed([&](ShardedModule& sharded) {
    set_gradients(sharded);
    torch::optim::SGD(sharded.parameters(), 1.0).step();
  });
  expect_unharmed([&](ShardedModule& sharded) {
    set_gradients(sharded);
    optim::FusedAdamW(sharded.parameters(), {.learning_rate = 1.0}).step();
  });
}

TEST(SharedShardsWrites, WholeParameters) {
  expect_unharmed([](ShardedModule& sharded) {
    sharded.update_whole_parameters([](const WholeParameter& whole) { whole.value.zero_(); });
  });
}

TEST(SharedShardsWrites, WhileAUnitIsPinnedAreErrors) {
  with_shared_memory(2, [](Ranks world) {
    torch::NoGradGuard no_grad;
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world));
    sharded->pin({}, [&] {
      expect_error([&] { sharded->parameters().front().mul_(2); }, {"pinned", "views of the shards", "pin()"});
    });
    sharded->parameters().front().mul_(1);
  });
}

// Writes through a pointer, which no operator sees; DebugOptions::read_only_parameters detects the write.
TEST(SharedShardsDeathTest, AWritePastTheDispatcherEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const std::optional<at::ScalarType> dtype : {std::optional<at::ScalarType>(), {at::kBFloat16}}) {
    const auto write_through_pointer = [&] {
      with_shared_memory(2, [&](Ranks world) {
        auto model = make_tiny_lm({});
        Options options = block_options(world);
        options.param_dtype = dtype;
        options.debug.read_only_parameters = true;
        auto sharded = fully_shard(*model, options);
        sharded->with_full_params([&] { static_cast<char*>(model->head->weight.data_ptr())[0] = 1; });  // allowed
        sharded->reshard();
        sharded->pin({}, [&] {
          if (world->rank() == 1) static_cast<char*>(model->head->weight.data_ptr())[0] = 1;
          world->barrier({"never", 0, Pass::kUser});
        });
      });
    };
    EXPECT_EXIT(write_through_pointer(), ::testing::KilledBySignal(SIGSEGV),
                "fsdp: rank 1: 'root': a write to gathered parameters.*with_full_params");
  }
}

TEST(SharedShardsWrites, OfARunWithReadOnlyParametersGoOn) {
  const auto read_only = [](Options& options) { options.debug.read_only_parameters = true; };
  const auto low = [](Options& options) {
    options.debug.read_only_parameters = true;
    options.param_dtype = at::kBFloat16;
  };
  expect_same(weights_after_training("shm", 3, read_only), weights_after_training("gloo", 3, [](Options&) {}));
  expect_same(weights_after_training("shm", 3, low),
              weights_after_training("gloo", 3, [](Options& options) { options.param_dtype = at::kBFloat16; }));
}

// Rank 1 is still in its layer when the others, whose shards are not shared, gather the next values.
TEST(PublishedParameters, AreNotWrittenWhileOthersReadThem) {
  with_shared_memory(3, [](Ranks world) {
    torch::NoGradGuard no_grad;
    SlowLayer model;
    const torch::Tensor input = testing::numbers({2, 5}).to(at::kBFloat16);
    const torch::Tensor want = model->forward(input.to(at::kFloat));
    const torch::Tensor weight = model->weight.to(at::kBFloat16), bias = model->bias.to(at::kBFloat16);
    Options options;
    options.communicator = world;
    options.param_dtype = at::kBFloat16;
    auto sharded = fully_shard(*model, options);
    if (world->rank() == 1) model->delay = std::chrono::milliseconds(30);
    for (int round = 0; round < 4; ++round) {
      const double factor = std::pow(2, round);
      EXPECT_TRUE(torch::equal(model->forward(input), input.mm(weight * factor) + bias * factor)) << "round " << round;
      sharded->reshard();
      for (const torch::Tensor& leaf : sharded->parameters()) leaf.detach().mul_(2);
    }
  });
}

// A leaf that outlives the module and its ranks is an ordinary tensor.
TEST(SharedShardsWrites, OfLeavesThatAreLeft) {
  std::vector<torch::Tensor> leaves;
  with_shared_memory(2, [&](Ranks world) {
    auto model = make_tiny_lm({});
    auto sharded = fully_shard(*model, block_options(world));
    if (world->rank() == 0) leaves = sharded->parameters();
  });
  torch::NoGradGuard no_grad;
  leaves.front().fill_(5);
  EXPECT_TRUE(leaves.front().eq(5).all().item<bool>());
}

// Writes leaves in different orders, as an optimizer does that skips leaves without elements: each rank first writes
// what the other rank still reads.
TEST(SharedShardsWrites, InDifferentOrdersDoNotWaitForEachOther) {
  with_shared_memory(2, [](Ranks world) {
    torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    Options options = block_options(world);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*model, options);
    std::vector<torch::Tensor> leaves = sharded->parameters();
    if (world->rank() == 1) std::reverse(leaves.begin(), leaves.end());
    torch::NoGradGuard no_grad;
    for (int step = 0; step < 3; ++step) {
      sharded->unshard();
      model->forward(torch::ones({2, 4}));
      if (step == 1) {
        sharded->reshard();
        sharded->unshard(/*async_op=*/true);
      }
      for (const torch::Tensor& leaf : leaves) leaf.mul_(0.5);
    }
  });
}

}  // namespace
}  // namespace fsdp
