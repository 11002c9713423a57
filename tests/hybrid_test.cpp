// Hybrid sharding: how much it sends where, how meshes are given, and how its two stages follow each other.
// training_test checks that it trains as one process does.
#include "comm/testing/faulty_communicator.h"
#include "comm/testing/recording_communicator.h"
#include "engine/engine.h"
#include "fsdp/backends.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fully_shard.h"
#include "support/faults/error_of.h"
#include "support/nets/even_chain.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::BlockImpl;
using testing::EvenChain;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::weights_after_steps;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;

Options options_on(const ProcessMesh& mesh, ShardingStrategy strategy) {
  Options options;
  options.mesh = mesh;
  options.sharding_strategy = strategy;
  options.auto_wrap_policy = module_class_policy<BlockImpl>();
  return options;
}

// ---------------------------------------------------------------- bytes

struct Sent {
  uint64_t inside = 0;  // to ranks on the same host
  uint64_t across = 0;
};

// Returns the bytes sent by all groups so far. Each host has G ranks that are neighbors in `world` and form a shard
// group.
Sent sent_by(const ProcessMesh& mesh, int G) {
  Sent sent;
  const std::vector<uint64_t> bytes = mesh.world->bytes_sent_to();
  for (int peer = 0; peer < mesh.world->size(); ++peer) {
    (peer / G == mesh.world->rank() / G ? sent.inside : sent.across) += bytes[static_cast<size_t>(peer)];
  }
  sent.inside += mesh.shard->bytes_sent();
  sent.across += mesh.replicate->bytes_sent();
  return sent;
}

constexpr int64_t kWidth = EvenChain::kWidth;
constexpr int kLayers = EvenChain::kLayers;
constexpr uint64_t M = EvenChain::kBytes;
constexpr uint64_t kAgreement = EvenChain::kAgreement;

// Returns the bytes sent in one step, without the kAgreement bytes.
Sent sent_in_one_step(const Ranks& world, int G, ShardingStrategy strategy) {
  ProcessMesh mesh = make_mesh(world, G);
  auto chain = EvenChain::make();
  Options options = options_on(mesh, strategy);
  options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
  auto sharded = fully_shard(*chain, options);
  sharded->diagnostics().verify_sharding();
  Sent before = sent_by(mesh, G);
  chain->forward(torch::ones({2, kWidth}).requires_grad_()).sum().backward();
  Sent after = sent_by(mesh, G);
  const uint64_t W = world->size(), others = is_hybrid(strategy) ? W / G - 1 : W - G;
  return {after.inside - before.inside - kAgreement * (G - 1), after.across - before.across - kAgreement * others};
}

// The bytes that the algorithms send, per rank and step. Each sends every byte directly to the rank that needs it, so
// the totals equal those of rings: (W-1)/W of the data for a gather or a reduce-scatter, twice that for an all-reduce.
//
//   NO_SHARD       2M(W-1)/W            as in the paper: one all-reduce
//   FULL_SHARD     3M(W-1)/W            as in the paper: two gathers (forward, backward) and a reduce-scatter
//   SHARD_GRAD_OP  2M(W-1)/W            one gather less
//   HYBRID_SHARD   3M(G-1)/G  inside    a host, and across hosts an all-reduce of M/G over W/G replicas:
//                  2M(W-G)/(GW) across
//
// Instead of the paper's 3M, the engine sends (3 - 1/L)M with L units: backward begins with the unit that forward used
// last, which therefore stays gathered.
//
// For the last term, section 3.2.2 of the paper has 2M(W-1)/(GW). It counts the all-reduce of M/G as if it went over W
// ranks. Over the W/G ranks that take part, (W/G-1)/(W/G) = (W-G)/W replaces (W-1)/W, so that nothing is sent with one
// host (W = G). The paper's figure is larger by 2M(G-1)/(GW).
//
// Of the traffic over all ranks, with its factor (W-1)/W, the part with (W-G)/W goes to the W-G ranks on other hosts.
constexpr uint64_t kThreeM = 3 * M - M / kLayers;

TEST(HybridBytes, AreThoseOfTheAlgorithms) {
  for (auto [W, G] : {std::pair{2, 1}, {2, 2}, {4, 2}, {8, 2}, {8, 4}}) {
    testing::run_ranks_over_gloo(W, [W = W, G = G](Ranks world) {
      const uint64_t elsewhere = W - G;
      Sent none = sent_in_one_step(world, G, kNoShard);
      EXPECT_EQ(none.inside + none.across, 2 * M * (W - 1) / W);
      EXPECT_EQ(none.across, 2 * M * elsewhere / W);

      Sent full = sent_in_one_step(world, G, kFullShard);
      EXPECT_EQ(full.inside + full.across, kThreeM * (W - 1) / W);
      EXPECT_EQ(full.across, kThreeM * elsewhere / W);

      Sent grad_op = sent_in_one_step(world, G, kShardGradOp);
      EXPECT_EQ(grad_op.inside + grad_op.across, 2 * M * (W - 1) / W);

      Sent hybrid = sent_in_one_step(world, G, kHybridShard);
      EXPECT_EQ(hybrid.inside, kThreeM * (G - 1) / G);
      EXPECT_EQ(hybrid.across, 2 * M * elsewhere / (G * W));
      EXPECT_LE(hybrid.across, 2 * M * (W - 1) / (G * W));  // the figure of the paper

      Sent zero2 = sent_in_one_step(world, G, kHybridShardZero2);
      EXPECT_EQ(zero2.inside, 2 * M * (G - 1) / G);
      EXPECT_EQ(zero2.across, hybrid.across);
    });
  }
}

// In bf16 every collective sends half the bytes, including the second stage.
TEST(HybridBytes, HalveInLowPrecision) {
  testing::run_ranks_over_gloo(4, [](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 2);
    auto chain = EvenChain::make();
    Options options = options_on(mesh, kHybridShard);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    options.param_dtype = at::kBFloat16;
    auto sharded = fully_shard(*chain, options);
    sharded->diagnostics().verify_sharding();
    Sent before = sent_by(mesh, 2);
    chain->forward(torch::ones({2, kWidth}, at::kBFloat16).requires_grad_()).sum().backward();
    Sent after = sent_by(mesh, 2);
    EXPECT_EQ(after.inside - before.inside - kAgreement, kThreeM / 2 / 2);
    EXPECT_EQ(after.across - before.across - kAgreement, 2 * M / 2 * 2 / (2 * 4));
  });
}

// ---------------------------------------------------------------- ways to give a mesh

TEST(HybridMesh, MayBeAPairOfGroupsOrOneHostEach) {
  run_ranks(4, [](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 2);
    auto want = weights_after_steps(world, options_on(mesh, kHybridShard));
    ProcessMesh pair{nullptr, mesh.shard, mesh.replicate};
    expect_same(weights_after_steps(world, options_on(pair, kHybridShard)), want);
    ProcessMesh hosts = make_mesh_of_hosts(world, world->rank() < 2 ? "first" : "second");
    expect_same(weights_after_steps(world, options_on(hosts, kHybridShard)), want);

    // Ranks are threads on one machine: they form a single shard group, so the result equals FULL_SHARD.
    Options by_host = options_on(mesh, kHybridShard);
    by_host.mesh.reset();
    by_host.communicator = world;
    Options full = by_host;
    full.sharding_strategy = kFullShard;
    expect_same(weights_after_steps(world, by_host), weights_after_steps(world, full));
  });
}

TEST(HybridMesh, ReplicasCompareHowTheyShard) {
  std::atomic<int> errors = 0;
  run_ranks(4, [&](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 2);
    auto model = make_tiny_lm({.hidden = world->rank() < 2 ? 11 : 12});
    auto sharded = fully_shard(*model, options_on({nullptr, mesh.shard, mesh.replicate}, kHybridShard));
    try {
      sharded->diagnostics().verify_sharding();
    } catch (const c10::Error& error) {
      ++errors;
      std::string text = error.what_without_backtrace();
      EXPECT_NE(
          text.find(c10::str("rank ", world->rank() % 2, " has [parameter 'blocks.0.up.weight' of shape [11, 7]")),
          std::string::npos)
          << text;
    }
  });
  EXPECT_EQ(errors, 4);
}

TEST(HybridMesh, MistakesAreNamed) {
  run_ranks(2, [](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 1);
    auto shard = [&](Options options) { fully_shard(*make_tiny_lm({}), options); };
    expect_error([&] { shard(options_on({nullptr, mesh.shard, mesh.replicate}, kFullShard)); },
                 {"FULL_SHARD needs a group of all ranks", "Options::communicator"});
    expect_error([&] { shard(options_on({world, mesh.shard, nullptr}, kHybridShard)); },
                 {"must have both a shard group and a replicate group"});
    Options other = options_on(mesh, kHybridShard);
    other.communicator = testing::one_rank();
    expect_error([&] { shard(other); }, {"Options::communicator is not the world of Options::mesh"});
    Options nothing;
    expect_error([&] { shard(nothing); }, {"Options::communicator is not set"});
  });
}

TEST(HybridMesh, OfInnerUnitsMustBeTheSame) {
  run_ranks(2, [](Ranks world) {
    auto model = make_tiny_lm({});
    Options inner = options_on(make_mesh(world, 2), kHybridShard);
    inner.auto_wrap_policy = {};
    fully_shard(*model->blocks[0], inner);
    expect_error([&] { fully_shard(*model, options_on(make_mesh(world, 1), kHybridShard)); },
                 {"mesh (shard group)", "annotated with another one"});
    // Units with FULL_SHARD beside hybrid ones shard over the world of the same mesh.
    Options outer;
    outer.communicator = world;
    auto sharded = fully_shard(*model, outer);
    model->loss(batch_of(world->rank(), 0)).backward();
    EXPECT_GT(sharded->grad_norm().item<double>(), 0);
  });
}

// Strategies may differ from unit to unit. The norm adds up over each unit's own group.
TEST(HybridMesh, StrategiesMix) {
  run_ranks(4, [](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 2);
    auto run = [&](std::vector<ShardingStrategy> strategies) {
      auto model = make_tiny_lm({}, at::kDouble);
      for (size_t i = 0; i < strategies.size(); ++i) {
        Options options = options_on(mesh, strategies[i]);
        options.auto_wrap_policy = {};
        fully_shard(*model->blocks[i], options);
      }
      auto sharded = fully_shard(*model, options_on(mesh, kFullShard));
      model->loss(batch_of(world->rank(), 0)).backward();
      double norm = sharded->clip_grad_norm_(0.1).item<double>();
      testing::descend(sharded->parameters());
      return std::pair{norm, weights_of(*sharded)};
    };
    auto [norm, weights] = run({kHybridShard, kNoShard, kHybridShardZero2});
    auto [norm_want, want] = run({kFullShard, kFullShard, kFullShard});
    EXPECT_NEAR(norm, norm_want, 1e-12);
    for (const auto& [name, tensor] : want) {
      EXPECT_TRUE(torch::allclose(weights.at(name), tensor, 1e-12, 1e-14)) << name;
    }
  });
}

// ---------------------------------------------------------------- among other dimensions

// The ranks of each coordinate of pp train as if they were alone.
TEST(DeviceMeshOfOtherDimensions, ItsDataParallelRanksTrainAsAloneTheyWould) {
  for (ShardingStrategy strategy : {kFullShard, kHybridShard}) {
    const int replicas = is_hybrid(strategy) ? 2 : 1;
    const auto options_of = [&](const ProcessMesh& mesh) {
      Options options = options_on(mesh, strategy);
      options.communicator = mesh.world;
      if (!mesh.is_2d()) options.mesh.reset();
      return options;
    };
    std::map<std::string, torch::Tensor> alone;
    run_ranks(2 * replicas, [&](Ranks world) {
      const auto mesh = is_hybrid(strategy) ? make_mesh(world, 2) : ProcessMesh{world, nullptr, nullptr};
      const auto weights = weights_after_steps(world, options_of(mesh));
      if (world->rank() == 0) alone = weights;
    });
    run_ranks(4 * replicas, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_replicate", replicas}, {"dp_shard", -1}});
      const ProcessMesh data = mesh.data_parallel();
      expect_same(weights_after_steps(data.world, options_of(data)), alone);
    });
  }
}

// ---------------------------------------------------------------- order

// The all-reduce over replicas is issued just before the next unit's reduce-scatter and waited for one unit later, so
// the computation of a whole unit can hide it.
TEST(HybridOrder, AllReduceOverlapsTheNextUnit) {
  run_ranks(4, [](Ranks world) {
    ProcessMesh mesh = make_mesh(world, 2);
    auto shard = std::make_shared<comm::RecordingCommunicator>(mesh.shard);
    auto replicate = std::make_shared<comm::RecordingCommunicator>(mesh.replicate);
    auto chain = EvenChain::make();
    Options options = options_on({world, shard, replicate}, kHybridShardZero2);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*chain, options);
    torch::Tensor loss = chain->forward(torch::ones({2, kWidth}).requires_grad_()).sum();
    std::vector<std::string> seen;  // collectives in flight when each unit's gradient arrives
    auto in_flight = [](const comm::RecordingCommunicator& group, comm::CollectiveKind kind) {
      std::vector<std::string> names;
      for (const comm::CollectiveEvent& event : group.events()) {
        if (event.kind != kind) continue;
        if (event.what == comm::CollectiveEvent::What::kIssue) names.push_back(event.id.name);
        if (event.what == comm::CollectiveEvent::What::kWait) std::erase(names, event.id.name);
      }
      return c10::Join(",", names);
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      // A hook on a leaf runs just before its gradient is captured.
      chain[layer]->as<torch::nn::Linear>()->bias.register_hook([&, layer](torch::Tensor) {
        seen.push_back(c10::str(layer, ": ", in_flight(*shard, comm::CollectiveKind::kReduceScatter), " | ",
                                in_flight(*replicate, comm::CollectiveKind::kAllReduce)));
      });
    }
    loss.backward();
    EXPECT_THAT(seen, ::testing::ElementsAre("2:  | ", "1: 2 | ", "0: 1 | 2"));
    std::vector<std::string> order;
    for (const comm::CollectiveEvent& event : replicate->events()) {
      if (event.kind == comm::CollectiveKind::kAllReduce) {
        order.push_back((event.what == comm::CollectiveEvent::What::kIssue ? "issue " : "wait ") + event.id.name);
      }
    }
    EXPECT_THAT(order, ::testing::ElementsAre("issue 2", "wait 2", "issue 1", "issue 0", "wait 1", "wait 0"));
  });
}

// A chain over groups of which only this rank exists. One collective over the replicas fails, once.
struct ChainWithFault {
  explicit ChainWithFault(const comm::Fault& fault)
      : replicate(
            std::make_shared<comm::FaultyCommunicator>(make_fake_communicator(0, 2), std::vector<comm::Fault>{fault})) {
    Options options = options_on({nullptr, make_fake_communicator(0, 2), replicate}, kHybridShard);
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    options.debug.collective_check.level = CollectiveCheckLevel::kOff;
    sharded = fully_shard(*chain, options);
  }
  void step() {
    chain->forward(torch::ones({2, kWidth})).sum().backward();
    const std::vector<at::Tensor> leaves = sharded->parameters();
    EXPECT_TRUE(
        std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) { return leaf.grad().defined(); }));
    sharded->zero_grad();
  }

  torch::nn::Sequential chain = EvenChain::make();
  std::shared_ptr<comm::FaultyCommunicator> replicate;
  std::shared_ptr<ShardedModule> sharded;
};

TEST(HybridOrder, AFailedStageIsAnErrorAndAStepMayFollow) {
  for (comm::Fault::What what : {comm::Fault::What::kFailIssue, comm::Fault::What::kFailWait}) {
    int failed = 0;
    for (;; ++failed) {
      ChainWithFault trained({.index = failed, .what = what});
      const std::string error = testing::error_of([&] { trained.step(); });
      if (error == "no error") {
        break;  // the step has fewer collectives
      }
      EXPECT_THAT(error, ::testing::HasSubstr("injected fault"));
      trained.sharded->reset();
      trained.step();
      EXPECT_EQ(trained.sharded->diagnostics().stats().gathered_units, 0) << "fault " << failed;
    }
    EXPECT_GT(failed, kLayers) << "all stages of the layers, and some before them";
  }
}

}  // namespace
}  // namespace fsdp
