// Tests start-up: modules that are built without memory, initialised or received unit by unit, or partly ignored, train
// as the same module made in one process.
#include "fsdp/backends.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using namespace testing;  // of this project

// A module whose parameters are initialised twice, one layer from another, with a buffer and with a table that is not
// registered with the module.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(4, 67))),
        second(register_module("second", torch::nn::Linear(67, 67))),
        third(register_module("third", torch::nn::Linear(67, 67))),
        head(register_module("head", torch::nn::Linear(67, 3))),
        offset(register_buffer("offset", torch::randn({67}))) {
    torch::NoGradGuard no_grad;
    head->weight.normal_(0, 0.1);
    third->weight.copy_(second->weight).mul_(0.5);
    second->weight.uniform_(-0.1, 0.1);
    table = torch::outer(torch::arange(16, torch::kDouble), torch::ones({67}, torch::kDouble)).cos();
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::tanh(first(x)) + offset + table.slice(0, 0, x.size(0)).to(x.device());
    return head(torch::tanh(third(torch::tanh(second(y)))));
  }
  torch::nn::Linear first, second, third, head;
  torch::Tensor offset, table;
};
TORCH_MODULE(Net);

Net make_net() { return Net(); }

void run_step(NetImpl& net, const RankStep& step) {
  torch::Tensor loss = net.forward(step.x().to(torch::kDouble)).square().mean();
  step.see(loss);
  step.backward(loss);
}

// Makes this rank's module while no other rank draws from the generator, which the threads share.
Net make_in_turn(Communicator& world, const std::function<Net(int rank)>& make) {
  Net net = make(world.rank());
  world.barrier({"all modules are made", 0, Pass::kSetup});
  return net;
}

using Change = std::function<void(Options& options, torch::nn::Module& net, int rank)>;

// Trains `make(rank)` sharded, and compares the results with make_net() trained in one process.
void expect_trains_as_in_one_process(const ShardingCase& sharding, const std::function<Net(int rank)>& make,
                                     const Change& change = {}) {
  Net plain = seeded(make_net);
  plain->to(test_device());
  const Outcome want = train_in_one_process(*plain, run_step, sharding.world_size);
  run_on_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    Net net = make_in_turn(*world, make);
    Options options = options_of(sharding, world);
    options.device = test_device();
    if (change) change(options, *net, world->rank());
    auto sharded = shard(*net, sharding, options);
    expect_same_outcome(train_sharded(*net, *sharded, run_step, world->rank()), want, sharding, world->rank());
    EXPECT_TRUE(same_bits(net->offset, plain->offset));
  });
}

Net deferred_net(uint64_t seed = 17) {
  return seeded([] { return deferred_init(make_net); }, seed);
}

class StartUp : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(StartUp, ADeferredModuleTrainsLikeAnyOther) {
  expect_trains_as_in_one_process(GetParam(), [](int) { return deferred_net(); });
}

TEST_P(StartUp, OnlyRankZeroNeedsTheWeights) {
  auto make = [](int rank) {
    if (rank == 0) return seeded(make_net);
    return rank == 1 ? deferred_net(99) : seeded(make_net, 99);
  };
  expect_trains_as_in_one_process(GetParam(), make,
                                  [](Options& options, auto&&...) { options.sync_module_states = true; });
}

TEST_P(StartUp, RankZeroMayInitialiseUnitByUnit) {
  auto whole = seeded(make_net);
  std::map<std::string, torch::Tensor> weights = weights_of(*whole);
  auto change = [&](Options& options, torch::nn::Module& net, int rank) {
    options.sync_module_states = true;
    auto paths = std::make_shared<std::map<const torch::nn::Module*, std::string>>();
    for (const auto& child : net.named_modules("", /*include_self=*/false)) (*paths)[child.value().get()] = child.key();
    options.param_init_fn = [=, &weights](torch::nn::Module& module) {
      EXPECT_EQ(rank, 0);
      EXPECT_FALSE(torch::GradMode::is_enabled());
      for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
        entry.value().copy_(weights.at(paths->at(&module) + "." + entry.key()));
      }
    };
  };
  expect_trains_as_in_one_process(
      GetParam(), [](int) { return deferred_net(5); },
      [&](auto& options, auto& net, int rank) {
        change(options, net, rank);
        if (rank == 0) {
          torch::NoGradGuard no_grad;
          static_cast<NetImpl&>(net).offset.copy_(whole->offset);
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Shardings, StartUp, ::testing::ValuesIn(sharding_cases()),
                         [](const auto& info) { return name_of(info.param); });

// ---------------------------------------------------------------- bit-equal shards

struct Units {
  std::string name;
  std::function<std::shared_ptr<ShardedModule>(Net& net, const Options& options)> shard;
};

std::vector<Units> ways_to_make_units() {
  return {
      {"one", [](Net& net, const Options& options) { return fully_shard(net, options); }},
      {"every_module",
       [](Net& net, Options options) {
         options.auto_wrap_policy = every_module();
         return fully_shard(net, options);
       }},
      {"bottom_up",
       [](Net& net, const Options& options) {
         fully_shard(net->third, options);
         fully_shard(net->first, options);
         return fully_shard(net, options);
       }},
      {"siblings",
       [](Net& net, const Options& options) {
         fully_shard({net->head.ptr(), net->second.ptr()}, options);
         return fully_shard(net, options);
       }},
      {"automatic",
       [](Net& net, Options options) {
         options.auto_units = AutoUnits{};
         return fully_shard(net, options);
       }},
  };
}

std::map<std::string, torch::Tensor> shards_of(const ShardedModule& sharded) {
  std::map<std::string, torch::Tensor> shards;
  for (const ShardSlice& slice : sharded.shard_slices()) shards[slice.fqn] = slice.data.clone();
  return shards;
}

TEST(DeferredShards, AreEqualToTheBitHoweverUnitsAreMade) {
  for (const Units& units : ways_to_make_units()) {
    for (int size : {1, 3, 5}) {
      for (at::ScalarType compute : {at::kDouble, at::kBFloat16}) {
        for (int rank = 0; rank < size; ++rank) {
          Options options;
          options.communicator = make_fake_communicator(rank, size);
          options.param_dtype = compute;
          options.sharding_strategy = ShardingStrategy::kShardGradOp;  // does not warn about a single unit
          Net eager = seeded(make_net), net = deferred_net();
          auto want = units.shard(eager, options), got = units.shard(net, options);
          SCOPED_TRACE(c10::str(units.name, ", rank ", rank, " of ", size));
          expect_same(shards_of(*got), shards_of(*want));
          EXPECT_FALSE(is_deferred(net->offset));
        }
      }
    }
  }
}

// Applies one operator to a sharded parameter and to a table that only the module itself holds.
TEST(DeferredShards, MeetDeferredTensorsInOperators) {
  struct Scaled : torch::nn::Module {
    Scaled() {
      weight = register_parameter("weight", torch::randn({70, 50}));
      scale = torch::rand({70, 50});
    }
    torch::Tensor weight, scale;
  };
  auto build = [] { return std::make_shared<Scaled>(); };
  auto eager = seeded(build);
  auto module = seeded([&] { return deferred_init(build); });
  auto sharded = shard_strictly(*module);
  EXPECT_TRUE(same_bits((module->weight * module->scale).detach(), (eager->weight * eager->scale).detach()));
  EXPECT_TRUE(same_bits((module->scale * module->weight).detach(), (eager->scale * eager->weight).detach()));
}

TEST(DeferredShards, LeaveTheGeneratorWhereConstructionDoes) {
  Options options = one_rank_options();
  torch::manual_seed(17);
  Net eager;
  torch::Tensor want = torch::rand({3});
  torch::manual_seed(17);
  Net net = deferred_init(make_net);
  auto sharded = fully_shard(net, options);
  EXPECT_TRUE(same_bits(torch::rand({3}), want));
}

TEST(DeferredShards, AreNotMadeUnderTheGuard) {
  DeferredInitGuard guard;
  Net net;
  expect_error([&] { fully_shard(net, one_rank_options()); }, {"under a DeferredInitGuard"});
}

TEST(DeferredShards, OfTensorsOverOneMemoryAreRefused) {
  struct Overlapping : torch::nn::Module {
    Overlapping() {
      torch::Tensor both = torch::randn({60, 60});
      register_parameter("a", both.data());
      register_parameter("b", both.slice(0, 5, 9).data());
    }
  };
  auto module = deferred_init([] { return std::make_shared<Overlapping>(); });
  expect_error([&] { fully_shard(*module, one_rank_options()); }, {"'a'", "'b'", "the same memory"});
}

// ---------------------------------------------------------------- param_init_fn, sync_module_states

TEST(ParamInitFn, IsCalledOnceForEachModuleThatHasNoValues) {
  Net net = deferred_net();
  materialize(*net->second);
  torch::Tensor second = net->second->weight.detach().clone();
  std::vector<torch::nn::Module*> called;
  Options options = one_rank_options();
  options.param_init_fn = [&](torch::nn::Module& module) {
    called.push_back(&module);
    auto& linear = *module.as<torch::nn::Linear>();
    torch::nn::init::constant_(linear.weight, 3);
    torch::nn::init::constant_(linear.bias, 4);
  };
  auto sharded = fully_shard(net, options);
  EXPECT_EQ(called, (std::vector<torch::nn::Module*>{net->first.get(), net->third.get(), net->head.get()}));
  auto weights = weights_of(*sharded);
  EXPECT_TRUE(same_bits(weights.at("second.weight"), second));
  EXPECT_TRUE(same_bits(weights.at("first.weight"), torch::full({67, 4}, 3, torch::kDouble)));
  EXPECT_TRUE(same_bits(weights.at("head.bias"), torch::full({3}, 4, torch::kDouble)));
}

// A module with one parameter on the meta device.
struct MetaImpl : torch::nn::Module {
  MetaImpl() { register_parameter("weight", torch::empty({5, 3}, torch::kMeta)); }
};

TEST(ParamInitFn, ServesTheMetaDevice) {
  auto module = std::make_shared<MetaImpl>();
  Options options = one_rank_options();
  options.device = at::kCPU;
  options.param_init_fn = [](torch::nn::Module& one) { torch::nn::init::ones_(one.named_parameters()["weight"]); };
  auto sharded = fully_shard(*module, options);
  EXPECT_TRUE(same_bits(weights_of(*sharded).at("weight"), torch::ones({5, 3})));
}

TEST(SyncModuleStates, NeedsValuesOnRankZero) {
  run_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    auto module = std::make_shared<MetaImpl>();
    Options options;
    options.communicator = world;
    options.device = at::kCPU;
    options.sync_module_states = true;
    expect_error([&] { fully_shard(*module, options); }, {"'weight'", "meta device on rank 0"});
  });
}

TEST(SyncModuleStates, ReachesAllRanksOfAMeshWithoutAWorld) {
  run_ranks(4, [](const std::shared_ptr<Communicator>& world) {
    Net net = seeded(make_net, 20 + world->rank()), zero = seeded(make_net, 20);
    Options options;
    options.mesh = make_mesh(world, 2);
    options.mesh->world.reset();
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.auto_wrap_policy = every_module();
    options.sync_module_states = true;
    auto sharded = fully_shard(net, options);
    expect_same(weights_of(*sharded), weights_of(*zero));
    EXPECT_TRUE(same_bits(net->offset, zero->offset));
  });
}

TEST(SyncModuleStates, SaysWhichParameterHasAnotherShape) {
  run_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    torch::nn::Linear linear(5, world->rank() == 0 ? 3 : 4);
    Options options;
    options.communicator = world;
    options.sync_module_states = true;
    expect_error([&] { fully_shard(linear, options); }, {"'weight'", "60", "80"});
  });
}

// ---------------------------------------------------------------- ignored parts

TEST_P(StartUp, IgnoredPartsTrainAsTheUserDoesIt) {
  const ShardingCase& sharding = GetParam();
  Net plain = seeded(make_net);
  auto frozen = [](NetImpl& net) {
    for (torch::Tensor parameter : {net.second->weight, net.second->bias, net.first->bias}) {
      parameter.requires_grad_(false);
    }
  };
  frozen(*plain);
  plain->to(test_device());
  const Outcome want = train_in_one_process(*plain, run_step, sharding.world_size);
  run_on_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    Net net = make_in_turn(*world, [](int rank) { return rank % 2 == 0 ? deferred_net() : seeded(make_net); });
    frozen(*net);
    Options options = options_of(sharding, world);
    options.ignored_modules = {net->second.ptr()};
    options.ignored_parameters = {net->first->bias};
    options.device = test_device();
    auto sharded = shard(*net, sharding, options);
    net->second->to(test_device());
    net->first->bias.set_data(net->first->bias.to(test_device()));
    EXPECT_TRUE(same_bits(net->second->weight, plain->second->weight));
    EXPECT_TRUE(same_bits(net->first->bias, plain->first->bias));
    EXPECT_FALSE(is_deferred(net->second->weight));
    Outcome got = train_sharded(*net, *sharded, run_step, world->rank());
    EXPECT_FALSE(got.weights.count("second.weight"));
    EXPECT_FALSE(got.weights.count("first.bias"));
    for (const auto& [name, weight] : got.weights) {
      EXPECT_TRUE(torch::allclose(weight, want.weights.at(name), 1e-12, 1e-12)) << name;
    }
  });
}

TEST(Ignored, PartsStayIgnoredInCallsAbove) {
  Net net = make_net();
  Options inner = one_rank_options_for_lists();
  inner.ignored_parameters = {net->third->bias};
  fully_shard(net->third, inner);
  Options outer = inner;
  outer.ignored_parameters.clear();
  outer.ignored_modules = {net->head.ptr()};
  auto sharded = fully_shard(net, outer);
  std::set<std::string> names;
  for (const auto& [name, leaf] : sharded->named_parameters()) names.insert(name);
  EXPECT_EQ(names,
            (std::set<std::string>{"first.weight", "first.bias", "second.weight", "second.bias", "third.weight"}));
}

TEST(Ignored, BuffersKeepTheirDtype) {
  torch::nn::BatchNorm1d kept(5), cast(5);
  torch::nn::Sequential both(kept, cast);
  Options options = one_rank_options();
  options.buffer_dtype = at::kBFloat16;
  options.ignored_modules = {kept.ptr()};
  auto sharded = fully_shard(both, options);
  EXPECT_EQ(kept->running_mean.scalar_type(), at::kFloat);
  EXPECT_EQ(cast->running_mean.scalar_type(), at::kBFloat16);
}

TEST(Ignored, PartsThatAreShardedAlreadyAreAnError) {
  Net net = make_net();
  Options options = one_rank_options();
  fully_shard(net->third, options);
  options.ignored_modules = {net->third.ptr()};
  expect_error([&] { fully_shard(net, options); }, {"'third.weight'", "ignored", "unit 'root'"});
  options.ignored_modules = {nullptr};
  expect_error([&] { fully_shard(net, options); }, {"null"});
  options.ignored_modules = {};
  options.ignored_parameters = {torch::Tensor()};
  expect_error([&] { fully_shard(net, options); }, {"undefined"});
}

TEST(Ignored, NothingLeftIsAnError) {
  torch::nn::Linear linear(3, 3);
  Options options = one_rank_options();
  options.ignored_modules = {linear.ptr()};
  expect_error([&] { fully_shard(linear, options); }, {"ignored"});
}

}  // namespace
}  // namespace fsdp
