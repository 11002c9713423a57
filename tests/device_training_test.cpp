// The engine on a device with streams: gathers, reductions and computation run late on streams of their own and are
// ordered by events only. The results equal those that the same ranks compute on the CPU.
#include <chrono>
#include <thread>

#include "base/stream_order.h"
#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/devices/simulated_device.h"
#include "support/files/temporary_folder.h"
#include "support/nets/branched_net.h"
#include "support/ranks/nccl_ranks.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::DeviceKind;
using testing::DeviceKindGuard;
using testing::Outcome;
using testing::RankStep;
using testing::same_bits;
using testing::ShardingCase;
using Step = std::function<void(BranchedNetImpl&, RankStep)>;
using Change = std::function<void(Options&)>;

void plain_step(BranchedNetImpl& net, const RankStep& rank) {
  const torch::Tensor loss = net.loss(rank.x());
  rank.see(loss);
  rank.backward(loss);
}

Outcome train(const ShardingCase& sharding, const std::shared_ptr<Communicator>& world, const Step& step,
              const Change& change) {
  auto net = testing::seeded([] { return BranchedNet(); });
  net->to(testing::test_device());
  Options options = testing::options_of(sharding, world);
  if (change) change(options);
  auto sharded = testing::shard(*net, sharding, options);
  Outcome outcome = testing::train_sharded(*net, *sharded, step, world->rank());
  EXPECT_EQ(sharded->diagnostics().stats().gradient_buffer_bytes, 0);
  return outcome;
}

// Returns the outcome of each rank on the CPU, over Gloo.
std::vector<Outcome> train_on_cpu(const ShardingCase& sharding, const Step& step, const Change& change) {
  std::vector<Outcome> outcomes(sharding.world_size);
  testing::run_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    outcomes[world->rank()] = train(sharding, world, step, change);
  });
  return outcomes;
}

// Expects equality to the bit with one or two ranks. With more ranks, contributions are scaled or added in another
// order, so it allows 1e-12.
void expect_same_outcome(const Outcome& got, const Outcome& want, int ranks) {
  const auto alike = [&](const torch::Tensor& a, const torch::Tensor& b) {
    return ranks <= 2 ? same_bits(a, b) : torch::allclose(a, b, 1e-12, 1e-12);
  };
  for (const auto& [name, weight] : want.weights) EXPECT_TRUE(alike(got.weights.at(name), weight)) << name;
  ASSERT_EQ(got.seen.size(), want.seen.size());
  for (size_t step = 0; step < want.seen.size(); ++step) {
    ASSERT_EQ(got.seen[step].size(), want.seen[step].size());
    for (size_t i = 0; i < want.seen[step].size(); ++i) {
      EXPECT_TRUE(alike(got.seen[step][i], want.seen[step][i])) << "step " << step << ", value " << i;
    }
  }
}

// Does not check for leaked NCCL communicators: those of the last model live until another model is sharded.
class DeviceTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!comm::nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
    testing::fresh_fake_nccl();
  }
  // Applies `change` to the run on the device only, `change_both` to both runs.
  void expect_as_on_cpu(const ShardingCase& sharding, const Step& step, const Change& change_both = {},
                        const Change& change = {}) {
    const std::vector<Outcome> want = train_on_cpu(sharding, step, change_both);
    const auto change_all = [&](Options& options) {
      if (change_both) change_both(options);
      if (change) change(options);
    };
    const auto train_and_compare = [&](const std::shared_ptr<Communicator>& world) {
      expect_same_outcome(train(sharding, world, step, change_all), want[world->rank()], sharding.world_size);
    };
    const DeviceKindGuard simulated(DeviceKind::kSimulated);
    if (over_gloo) {
      testing::run_ranks(sharding.world_size, train_and_compare);
    } else {
      testing::run_nccl_ranks_on_own_devices(sharding.world_size, train_and_compare);
    }
  }

  bool over_gloo = false;
};

// ---------------------------------------------------------------- every way to shard

std::vector<ShardingCase> device_cases() {
  std::vector<ShardingCase> cases = testing::sharding_cases();
  std::erase_if(cases, [](const ShardingCase& sharding) { return sharding.world_size > 4; });
  return cases;
}

class EverySharding : public DeviceTraining, public ::testing::WithParamInterface<ShardingCase> {};
INSTANTIATE_TEST_SUITE_P(All, EverySharding, ::testing::ValuesIn(device_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST_P(EverySharding, TrainsAsOnTheCpu) { expect_as_on_cpu(GetParam(), plain_step); }

TEST_P(EverySharding, TrainsAsOnTheCpuWithShardsOnTheHost) {
  expect_as_on_cpu(GetParam(), plain_step, {}, [](Options& options) { options.cpu_offload = true; });
}

TEST_P(EverySharding, TrainsWithShardsInFiles) {
  const ShardingCase& sharding = GetParam();
  const testing::TemporaryFolder folder;
  const auto in_files = [&](Options& options) { options.offload_path = folder.path(); };
  const std::vector<Outcome> want = train_on_cpu(sharding, plain_step, {});
  const std::vector<Outcome> got = train_on_cpu(sharding, plain_step, in_files);
  for (int rank = 0; rank < sharding.world_size; ++rank) expect_same_outcome(got[rank], want[rank], 1);
  if (sharding.world_size == 2) expect_as_on_cpu(sharding, plain_step, {}, in_files);
}

TEST_P(EverySharding, TrainsOverGlooAsOnTheCpu) {
  over_gloo = true;
  expect_as_on_cpu(GetParam(), plain_step);
}

TEST_P(EverySharding, AccumulatesAsOnTheCpu) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    for (int pass = 0; pass < 4; ++pass) {
      const BackwardOptions options{.requires_gradient_sync = pass % 2 == 1, .requires_all_reduce = pass != 1};
      rank.sharded->backward(net.loss(rank.x(pass)), options);
    }
    rank.see(rank.sharded->clip_grad_norm_(0.5));
  };
  expect_as_on_cpu(GetParam(), step);
  expect_as_on_cpu(GetParam(), step, {}, [](Options& options) { options.cpu_offload = true; });
}

// ---------------------------------------------------------------- every way to overlap

struct Named {
  std::string name;
  Change change;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

std::vector<Named> ways() {
  return {{"none",
           [](Options& options) {
             options.forward_prefetch = false;
             options.backward_prefetch = BackwardPrefetch::kNone;
           }},
          {"post", [](Options& options) { options.backward_prefetch = BackwardPrefetch::kPost; }},
          {"unlimited", [](Options& options) { options.limit_all_gathers = false; }},
          {"one_at_a_time", [](Options& options) { options.max_gathered_units = 1; }},
          {"one_communicator", [](Options& options) { options.one_communicator = true; }},
          {"normal_priority", [](Options& options) { options.high_priority_streams = false; }},
          {"gradient_memory_kept", [](Options& options) { options.keep_memory = true; }},
          {"to_a_smaller_group", [](Options& options) { options.reshard_after_forward = 2; }},
          {"rows", [](Options& options) { options.shard_cut = ShardCut::kRows; }},
          {"rows_to_a_smaller_group",
           [](Options& options) {
             options.shard_cut = ShardCut::kRows;
             options.reshard_after_forward = 2;
           }},
          {"bf16",
           [](Options& options) {
             options.param_dtype = at::kBFloat16;
             options.reduce_dtype = at::kFloat;
           }},
          {"bf16_gradients", [](Options& options) {
             options.param_dtype = at::kBFloat16;
             options.reduce_dtype = at::kFloat;
             options.keep_low_precision_grads = true;
           }}};
}

class EveryWay : public DeviceTraining, public ::testing::WithParamInterface<std::tuple<Named, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, EveryWay, ::testing::Combine(::testing::ValuesIn(ways()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + (std::get<1>(info.param) ? "_on_host" : "");
                         });

TEST_P(EveryWay, TrainsAsOnTheCpu) {
  const auto& [way, on_host] = GetParam();
  const Change offload = [on_host = on_host](Options& options) { options.cpu_offload = on_host; };
  const int ranks = way.name.find("smaller_group") != std::string::npos ? 4 : 2;
  expect_as_on_cpu({ranks, ShardingStrategy::kFullShard, true, false}, plain_step, way.change, offload);
}

// ---------------------------------------------------------------- one stream far behind the others

enum class Held { kGather, kReduce, kAllReduce, kComputation };

// Blocks the stream for a while, after the work that was enqueued on it so far.
void hold_back(const c10::Stream& stream) {
  if (!base::has_streams(stream.device())) return;
  testing::enqueue_on_simulated_stream(base::native_stream(stream),
                                       [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); });
}

c10::Stream stream_of(const ShardedModule& sharded, Held held) {
  const engine::EngineStreams& streams = sharded.engine().streams();
  return held == Held::kGather      ? streams.gather
         : held == Held::kReduce    ? streams.reduce
         : held == Held::kAllReduce ? streams.all_reduce
                                    : base::current_stream(testing::test_device());
}

// A step in which the stream falls behind repeatedly: before forward, in it, before backward and after it.
Step step_with(Held held) {
  return [held](BranchedNetImpl& net, const RankStep& rank) {
    const auto fall_behind = [&] { hold_back(stream_of(*rank.sharded, held)); };
    fall_behind();
    const torch::Tensor h = net.encode(rank.x());
    fall_behind();
    const torch::Tensor loss = net.decode(h).pow(2).mean();
    fall_behind();
    rank.backward(loss);
    fall_behind();
    rank.see(loss);
  };
}

using HeldCase = std::tuple<Held, ShardingCase, bool>;
std::string name_of_held(const HeldCase& value) {
  const auto& [held, sharding, on_host] = value;
  const std::vector<std::string> names = {"Gathers", "Reductions", "AllReductions", "Computation"};
  return names[static_cast<size_t>(held)] + "_" + testing::name_of(sharding) + (on_host ? "_on_host" : "");
}

std::vector<ShardingCase> cases_to_hold() {
  return {{2, ShardingStrategy::kFullShard, true, false},
          {2, ShardingStrategy::kNoShard, true, true},
          {4, ShardingStrategy::kHybridShard, true, false},
          {2, ShardingStrategy::kFullShard, true, false, /*automatic=*/false, ShardCut::kRows}};
}

class OneStreamHeld : public DeviceTraining, public ::testing::WithParamInterface<HeldCase> {};
INSTANTIATE_TEST_SUITE_P(All, OneStreamHeld,
                         ::testing::Combine(::testing::Values(Held::kGather, Held::kReduce, Held::kAllReduce,
                                                              Held::kComputation),
                                            ::testing::ValuesIn(cases_to_hold()), ::testing::Bool()),
                         [](const auto& info) { return name_of_held(info.param); });

TEST_P(OneStreamHeld, TrainsAsOnTheCpu) {
  const auto& [held, sharding, on_host] = GetParam();
  const Change offload = [on_host = on_host](Options& options) { options.cpu_offload = on_host; };
  expect_as_on_cpu(sharding, step_with(held), {}, offload);
}

TEST_F(DeviceTraining, ASmallerGroupWhileAStreamIsHeld) {
  for (Held held : {Held::kGather, Held::kComputation}) {
    expect_as_on_cpu({4, ShardingStrategy::kFullShard, true, /*strict=*/true}, step_with(held),
                     [](Options& options) { options.reshard_after_forward = 2; });
  }
}

// The gradient of a parameter that is alone in its unit is reduced in the memory where autograd left it.
TEST_F(DeviceTraining, UnitsOfOneParameterWhileAStreamIsHeld) {
  for (Held held : {Held::kGather, Held::kReduce, Held::kComputation}) {
    for (bool keep : {false, true}) {
      expect_as_on_cpu({2, ShardingStrategy::kFullShard, true, /*strict=*/false}, step_with(held),
                       [keep](Options& options) {
                         options.auto_wrap_policy = {};
                         options.auto_units.emplace().target_bytes = 1;
                         options.keep_memory = keep;
                       });
    }
  }
}

// ---------------------------------------------------------------- users' own streams and hooks

// A unit is used on two streams, and backward runs on both.
TEST_F(DeviceTraining, PartOfTheModelOnAnotherStream) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    const c10::Stream usual = base::current_stream(testing::test_device());
    const c10::Stream other = base::take_stream(testing::test_device());
    const torch::Tensor x = rank.x();
    base::order_streams(usual, other);
    torch::Tensor h;
    {
      const base::CurrentStreamGuard on_other(other);
      h = net.encode(x);
      hold_back(other);
      h = h + net.c->bias.sum();
    }
    rank.sharded->reshard();  // while the other stream still reads
    base::order_streams(other, usual);
    const torch::Tensor loss = net.decode(h).pow(2).mean();
    rank.see(loss);
    rank.backward(loss);
    base::order_streams(usual, other);  // the memory of h belongs to the other stream
  };
  for (bool units : {true, false}) {
    expect_as_on_cpu({2, ShardingStrategy::kFullShard, true, false}, step, [&](Options& options) {
      if (!units) options.auto_wrap_policy = {};
    });
  }
}

TEST_F(DeviceTraining, GradientHooksSeeTheReducedGradient) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    rank.sharded->hooks().set_gradient_hook([](const ReducedGradient& reduced) {
      hold_back(base::current_stream(reduced.gradient.device()));  // autograd runs hooks in its own threads
      reduced.gradient.mul_(0.5);
    });
    plain_step(net, rank);
  };
  for (bool on_host : {false, true}) {
    expect_as_on_cpu({3, ShardingStrategy::kFullShard, true, false}, step, {},
                     [&](Options& options) { options.cpu_offload = on_host; });
  }
}

// If backward fails, autograd wakes the calling thread before it releases the pass.
TEST_F(DeviceTraining, FailedBackwardPassesAreNoticedAlikeOnAllRanks) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    for (int failure = 0; failure < 6; ++failure) {
      torch::Tensor h = net.encode(rank.x(failure));
      h.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
        if (gradient.defined()) throw std::runtime_error("in backward");
        return gradient;
      });
      EXPECT_THROW(net.decode(h).pow(2).mean().backward(), std::exception);
      rank.see(net.loss(rank.x(failure)));
    }
    rank.sharded->zero_grad();
    plain_step(net, rank);
  };
  for (int ranks : {2, 4}) expect_as_on_cpu({ranks, ShardingStrategy::kFullShard, true, false}, step);
}

TEST_F(DeviceTraining, OptimizerInBackward) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    rank.sharded->hooks().set_unit_reduced_hook([](const std::string&, const std::vector<torch::Tensor>& leaves) {
      const torch::NoGradGuard no_grad;
      for (const torch::Tensor& leaf : leaves) {
        if (leaf.grad().defined()) leaf.sub_(leaf.grad(), 0.25);
        leaf.mutable_grad().reset();
      }
    });
    plain_step(net, rank);
    rank.see(net.loss(rank.x(1)));
  };
  for (bool on_host : {false, true}) {
    for (ShardingStrategy strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      expect_as_on_cpu({2, strategy, true, false}, step, {}, [&](Options& options) { options.cpu_offload = on_host; });
    }
  }
}

TEST_F(DeviceTraining, WholeParametersAreReadWrittenAndUpdated) {
  const Step step = [](BranchedNetImpl& net, const RankStep& rank) {
    ShardedModule& sharded = *rank.sharded;
    plain_step(net, rank);
    sharded.summon_full_params({.with_grads = true}, [&] {
      const torch::NoGradGuard no_grad;
      net.a->weight.mul_(1.25);
      rank.see(net.b->bias.grad());
      net.b->bias.grad().mul_(2);
    });
    sharded.update_whole_parameters([](const WholeParameter& parameter) {
      const torch::NoGradGuard no_grad;
      parameter.value.sub_(parameter.gradient, 0.125);
    });
    rank.see(net.loss(rank.x(2)));
  };
  for (bool on_host : {false, true}) {
    for (int ranks : {1, 2, 3}) {
      expect_as_on_cpu({ranks, ShardingStrategy::kFullShard, true, false}, step, {},
                       [&](Options& options) { options.cpu_offload = on_host; });
    }
  }
}

TEST_F(DeviceTraining, ShardsAndGradientsAreWhereTheyShallBe) {
  for (bool on_host : {false, true}) {
    const DeviceKindGuard simulated(DeviceKind::kSimulated);
    testing::run_nccl_ranks_on_own_devices(2, [&](const std::shared_ptr<Communicator>& world) {
      BranchedNet net;
      net->to(testing::test_device());
      Options options = testing::options_of({2, ShardingStrategy::kFullShard, true, false}, world);
      options.cpu_offload = on_host;
      auto sharded = fully_shard(net, options);
      const torch::Tensor x = torch::ones({3, 4}, at::kDouble).to(testing::test_device());
      net->loss(x).backward();
      const c10::Device wanted = on_host ? c10::Device(c10::kCPU) : testing::test_device();
      for (const auto& [name, leaf] : sharded->named_parameters()) {
        EXPECT_EQ(leaf.device(), wanted) << name;
        EXPECT_TRUE(!leaf.grad().defined() || leaf.grad().device() == wanted) << name;
        EXPECT_TRUE(!on_host || leaf.numel() == 0 || leaf.is_pinned()) << name;
      }
      EXPECT_EQ(net->a->weight.device(), testing::test_device());
      EXPECT_NE(sharded->diagnostics().memory_summary().find(on_host ? "parameter shards (host)" : "parameter shards"),
                std::string::npos);
    });
  }
}

}  // namespace
}  // namespace fsdp
