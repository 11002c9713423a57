// Operators that write to whole parameters outside of with_full_params: they do what they do in a plain module, and
// each rank keeps its part. With all strategies, both cuts, numbers of ranks and communicators.
#include <ATen/CPUGeneratorImpl.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "support/faults/error_of.h"
#include "support/nets/branched_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/automatic_units.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::BranchedNet;
using testing::BranchedNetImpl;
using testing::errors_of_ranks;
using testing::expect_as_in_one_process;
using testing::expect_error;
using testing::expect_same;
using testing::numbers;
using testing::RankStep;
using testing::run_ranks;
using testing::same_bits;
using testing::ShardingCase;
using testing::weights_of;
using World = std::shared_ptr<Communicator>;

// Ranks are threads, which share the default generator.
at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

struct Write {
  const char* name;
  std::function<void(BranchedNetImpl& net)> apply;
};

void copy_whole(BranchedNetImpl& net) {
  torch::NoGradGuard no_grad;
  net.b->weight.copy_(numbers({5, 5}));
  net.scale.copy_(net.b->weight[1]);  // of another unit
}
void random(BranchedNetImpl& net) {
  at::Generator draws = generator(5);
  torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : net.parameters()) parameter.normal_(0, 1, draws);
  net.b->weight.uniform_(-1, 1, draws);
}
void views(BranchedNetImpl& net) {
  net.a->weight.data()[3].fill_(0.25);
  net.a->weight.detach().view({-1}).narrow(0, 7, 6).mul_(3);
  torch::NoGradGuard no_grad;
  net.b->weight.t().select(0, 2).add_(1);
  net.c->weight[2][3] = 7;
  net.c->weight.diagonal().zero_();
}
void lists(BranchedNetImpl& net) {
  torch::NoGradGuard no_grad;
  torch::_foreach_mul_(net.parameters(), 0.5);
  torch::_foreach_zero_({net.a->bias, net.b->bias});
  torch::_foreach_add_({net.a->bias, torch::zeros({2}, at::kDouble), net.c->bias},
                       {net.b->bias, torch::ones({2}, at::kDouble), net.c->bias});
}
void out_arguments(BranchedNetImpl& net) {
  torch::NoGradGuard no_grad;
  torch::mul_out(net.b->weight, numbers({5, 5}).to(at::kDouble), net.b->weight);
  torch::matmul_out(net.a->weight, net.b->weight, numbers({5, 4}).to(at::kDouble));
  torch::Tensor values = net.scale.detach(), indices = torch::empty({5}, at::kLong);
  torch::max_out(values, indices, net.b->weight, 0);
}
void indices(BranchedNetImpl& net) {
  torch::NoGradGuard no_grad;
  net.a->weight.index_put_({torch::tensor({0, 4})}, torch::full({}, 0.5, at::kDouble));
  net.b->weight.masked_fill_(net.b->weight > 0, 0.125);
  net.c->weight.scatter_(1, torch::zeros({3, 1}, at::kLong), 4.0);
  net.side->weight.renorm_(2, 0, 0.5);
  net.side->bias.data().clamp_(-0.1, 0.1);
}

const std::vector<Write> kWrites = {
    {"copy_whole", copy_whole},       {"random", random},  {"views", views}, {"lists", lists},
    {"out_arguments", out_arguments}, {"indices", indices}};

class WriteThrough : public ::testing::TestWithParam<ShardingCase> {};
INSTANTIATE_TEST_SUITE_P(All, WriteThrough, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST_P(WriteThrough, DoesWhatItDoesInAPlainModule) {
  auto plain = testing::seeded([] { return BranchedNet(); });
  std::vector<std::map<std::string, torch::Tensor>> want;
  for (const Write& write : kWrites) {
    write.apply(*plain);
    want.push_back(weights_of(*plain));
  }
  run_ranks(GetParam().world_size, [&](const World& world) {
    auto net = testing::seeded([] { return BranchedNet(); });
    auto sharded = testing::shard(*net, GetParam(), testing::options_of(GetParam(), world));
    const torch::Tensor x = torch::ones({3, 4}, at::kDouble);
    for (size_t i = 0; i < kWrites.size(); ++i) {
      SCOPED_TRACE(kWrites[i].name);
      torch::NoGradGuard no_grad;
      if (i % 2 == 1) (void)net->loss(x);  // units may stay gathered
      kWrites[i].apply(*net);
      for (const auto& entry : net->named_parameters()) {
        EXPECT_TRUE(same_bits(entry.value().clone(), want[i].at(entry.key()))) << entry.key();
      }
      expect_same(weights_of(*sharded), want[i]);
    }
  });
}

// Writes before forward, between forward and backward, and after it, as some training loops make them.
void step_with_writes(BranchedNetImpl& net, RankStep rank) {
  const bool writes = rank.sharded || rank.first_in_one_process();
  if (writes) net.a->weight.data().clamp_(-0.4, 0.4);
  const torch::Tensor loss = net.decode(net.encode(rank.x())).pow(2).mean();
  if (writes) {
    torch::NoGradGuard no_grad;  // backward does not need the bias of a linear layer
    net.b->bias.add_(0);
    net.spare->weight.mul_(0.5);
  }
  rank.backward(loss);
  if (writes) net.spare->bias.data().add_(1);
}

TEST_P(WriteThrough, InTraining) { expect_as_in_one_process(GetParam(), testing::make_branched_net, step_with_writes); }

TEST(WriteThroughOnADevice, WithShardsOnTheHost) {
  const testing::DeviceKindGuard simulated(testing::DeviceKind::kSimulated);
  for (const ShardCut cut : {ShardCut::kFlat, ShardCut::kRows}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      const ShardingCase sharding{.world_size = 2,
                                  .strategy = strategy,
                                  .use_orig_params = true,
                                  .strict = false,
                                  .automatic = false,
                                  .cut = cut};
      expect_as_in_one_process(sharding, testing::make_branched_net, step_with_writes,
                               [](Options& options) { options.cpu_offload = true; });
    }
  }
}

// ---------------------------------------------------------------- versions

class WriteThroughOnRanks : public ::testing::TestWithParam<int> {
 protected:
  void on_ranks(const std::function<void(const World&, BranchedNet&, ShardedModule&)>& body) const {
    run_ranks(GetParam(), [&](const World& world) {
      auto net = testing::seeded([] { return BranchedNet(); });
      Options options;
      options.communicator = world;
      options.auto_wrap_policy = testing::every_module();
      auto sharded = fully_shard(*net, options);
      body(world, net, *sharded);
    });
  }
  const torch::Tensor x = torch::ones({3, 4}, at::kDouble);
};
INSTANTIATE_TEST_SUITE_P(Ranks, WriteThroughOnRanks, ::testing::Values(1, 2, 3));

TEST_P(WriteThroughOnRanks, AWriteToASavedParameterIsAutogradsError) {
  on_ranks([this](const World&, BranchedNet& net, ShardedModule& sharded) {
    for (const bool through_view : {false, true}) {
      const torch::Tensor loss = net->loss(x);
      {
        torch::NoGradGuard no_grad;
        (through_view ? net->b->weight.detach()[1] : net->b->weight).mul_(2);
      }
      expect_error([&] { loss.backward(); }, {"modified by an inplace operation"});
      sharded.zero_grad();
    }
    net->loss(x).backward();
  });
}

// What plain PyTorch does not see: values that backward reads are the new ones.
TEST_P(WriteThroughOnRanks, AWriteThroughDataIsUsedByBackward) {
  auto plain = testing::seeded([] { return BranchedNet(); });
  const auto step = [this](BranchedNetImpl& net) {
    const torch::Tensor loss = net.loss(x);
    net.c->weight.data().mul_(2);
    net.b->bias.data().zero_();
    loss.backward();
  };
  step(*plain);
  on_ranks([&](const World&, BranchedNet& net, ShardedModule& sharded) {
    step(*net);
    expect_same(weights_of(sharded), weights_of(*plain));
    sharded.summon_full_params({.writeback = false, .with_grads = true}, [&] {
      for (const auto& entry : plain->named_parameters()) {
        const torch::Tensor got = net->named_parameters()[entry.key()].grad(), &wanted = entry.value().grad();
        ASSERT_EQ(got.defined(), wanted.defined());
        EXPECT_TRUE(!got.defined() || torch::allclose(got, wanted, 1e-12, 1e-12)) << entry.key();
      }
    });
  });
}

TEST_P(WriteThroughOnRanks, WritesInsideBackward) {
  auto plain = testing::seeded([] { return BranchedNet(); });
  const auto step = [this](BranchedNetImpl& net) {
    torch::Tensor h = net.encode(x);
    h.register_hook([&](const torch::Tensor& gradient) {
      net.c->weight.mul_(2);  // backward has used it
      net.spare->weight.fill_(3);
      return gradient;
    });
    net.decode(h).pow(2).mean().backward();
  };
  step(*plain);
  on_ranks([&](const World&, BranchedNet& net, ShardedModule& sharded) {
    step(*net);
    expect_same(weights_of(sharded), weights_of(*plain));
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::allclose(net->loss(x), plain->loss(x), 1e-12, 1e-12));
  });
}

TEST_P(WriteThroughOnRanks, UnderGradModeWritesAreThoseOfAutograd) {
  on_ranks([](const World&, BranchedNet& net, ShardedModule& sharded) {
    const auto before = weights_of(sharded);
    expect_error([&] { net->a->weight.mul_(2); }, {"leaf"});
    expect_error([&] { net->a->weight.view(-1).mul_(2); }, {"leaf"});
    torch::Tensor& frozen = net->spare->weight;
    expect_error([&] { torch::mul_out(net->a->weight, net->a->weight, torch::ones({}, at::kDouble)); }, {"grad"});
    expect_same(weights_of(sharded), before);
    // A graph through a detached view of a parameter ends there.
    net->a->weight.data().copy_(net->a->weight * 2);
    auto want = before;
    want["a.weight"] = want["a.weight"] * 2;
    expect_same(weights_of(sharded), want);
    EXPECT_TRUE(frozen.is_leaf());
  });
}

TEST_P(WriteThroughOnRanks, FrozenParametersInGradMode) {
  run_ranks(GetParam(), [&](const World& world) {
    auto net = testing::seeded([] { return BranchedNet(); });
    net->a->weight.requires_grad_(false);
    Options options;
    options.communicator = world;
    auto sharded = fully_shard(*net, options);
    auto want = weights_of(*sharded);
    net->a->weight.mul_(2);
    want["a.weight"] = want["a.weight"] * 2;
    expect_same(weights_of(*sharded), want);
    for (const bool through_view : {false, true}) {
      torch::Tensor written = through_view ? net->a->weight.view({4, 5}).t() : net->a->weight;
      expect_error([&] { written.copy_(net->b->weight.narrow(1, 0, 4)); },
                   {"unit 'root'", "'a.weight'", "copy_", "requires a gradient", "no-grad mode"});
    }
    expect_same(weights_of(*sharded), want);
    EXPECT_TRUE(net->a->weight.is_leaf());
    EXPECT_FALSE(net->a->weight.requires_grad());
  });
}

// ---------------------------------------------------------------- ranks that differ

TEST(WriteThroughDivergence, OtherValuesOnOtherRanksAreRefused) {
  struct Writer {
    const char* fqn;
    std::function<void(BranchedNetImpl&, int rank)> write;
  };
  const std::vector<Writer> writers = {
      {"'a.weight'", [](BranchedNetImpl& net, int rank) { net.a->weight.data().normal_(0, 1, generator(rank)); }},
      // Sums of the elements are equal.
      {"'b.bias'",
       [](BranchedNetImpl& net, int rank) { net.b->bias.data().copy_(torch::eye(5, at::kDouble)[rank % 5]); }},
      {"'c.weight'", [](BranchedNetImpl& net, int rank) {
         torch::NoGradGuard no_grad;
         torch::_foreach_mul_({net.b->weight, net.c->weight}, std::vector<at::Scalar>{1.0, rank == 1 ? 2.0 : 1.0});
       }}};
  for (const ShardingCase& sharding : testing::sharding_cases()) {
    if (sharding.world_size == 1) continue;
    SCOPED_TRACE(testing::name_of(sharding));
    run_ranks(sharding.world_size, [&](const World& world) {
      auto net = testing::seeded([] { return BranchedNet(); });
      auto sharded = testing::shard(*net, sharding, testing::options_of(sharding, world));
      const auto before = weights_of(*sharded);
      for (const Writer& writer : writers) {
        expect_error([&] { writer.write(*net, world->rank()); },
                     {"unit '", writer.fqn, "different values", "nothing was written"});
      }
      expect_same(weights_of(*sharded), before);
    });
  }
}

// Every rank sees rows of its own batch.
TEST(WriteThroughDivergence, EmbeddingsThatRenormaliseInForward) {
  const auto make = [] {
    return testing::seeded([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).max_norm(0.5)); });
  };
  run_ranks(2, [&](const World& world) {
    torch::nn::Embedding plain = make(), embedding = make();
    Options options;
    options.communicator = world;
    auto sharded = fully_shard(*embedding, options);
    const torch::Tensor ids = torch::tensor({1, 3, 3});
    EXPECT_TRUE(same_bits(embedding(ids).detach(), plain(ids).detach()));
    expect_same(weights_of(*sharded), weights_of(*plain));
    expect_error([&] { (void)embedding(torch::tensor({world->rank() + 5})); }, {"'weight'", "different values"});
  });
}

// ---------------------------------------------------------------- dtypes and places

class WriteThroughLow : public ::testing::TestWithParam<std::tuple<int, ShardCut, ShardingStrategy>> {
 protected:
  Options options(const World& world) const {
    Options options;
    options.communicator = world;
    options.shard_cut = std::get<1>(GetParam());
    options.sharding_strategy = std::get<2>(GetParam());
    options.param_dtype = at::kBFloat16;
    return options;
  }
  static std::vector<torch::Tensor> tensors() { return {numbers({7, 3}), numbers({5}), numbers({}), numbers({3, 0})}; }
};
INSTANTIATE_TEST_SUITE_P(
    All, WriteThroughLow,
    ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(ShardCut::kFlat, ShardCut::kRows),
                       ::testing::Values(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard)));

TEST_P(WriteThroughLow, OperatorsRunInTheDtypeOfTheShards) {
  run_ranks(std::get<0>(GetParam()), [&](const World& world) {
    Bag plain(tensors()), bag(tensors());
    auto sharded = fully_shard(*bag, options(world));
    const auto write = [](Bag& net) {
      torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> p = net->parameters();
      p[0].normal_(0, 0.02, generator(3));
      p[0][2].mul_(1.0 / 3);
      p[1].copy_(numbers({5}) / 7);
      p[1].data()[3].fill_(0.1);
      torch::_foreach_add_({p[1], p[2]}, 1e-4);
      torch::mul_out(p[2], p[2], torch::full({}, 1.0 / 3));
      p[3].zero_();
    };
    for (int round = 0; round < 2; ++round) {
      write(plain);
      write(bag);
      expect_same(weights_of(*sharded), weights_of(*plain));
      for (size_t i = 0; i < tensors().size(); ++i) {
        const torch::Tensor read = bag->parameters()[i].detach().clone();
        EXPECT_TRUE(same_bits(read, plain->parameters()[i].detach().to(at::kBFloat16))) << i;
      }
    }
    EXPECT_EQ(bag->parameters()[0].scalar_type(), at::kBFloat16);
    expect_error([&] { bag->parameters()[0].data().view(at::kShort).fill_(1); },
                 {"'p0'", "fill_", "Short", "with_full_params"});
  });
}

TEST_P(WriteThroughLow, ViewsOfTheBitsInTheDtypeOfTheShards) {
  run_ranks(std::get<0>(GetParam()), [&](const World& world) {
    Bag plain(tensors()), bag(tensors());
    Options full = options(world);
    full.param_dtype.reset();
    auto sharded = fully_shard(*bag, full);
    for (Bag* net : {&plain, &bag}) (*net)->parameters()[0].data().view(at::kInt)[3].bitwise_xor_(1);
    expect_same(weights_of(*sharded), weights_of(*plain));
  });
}

// ---------------------------------------------------------------- what cannot be done

TEST_P(WriteThroughOnRanks, GeometryBelongsToTheEngine) {
  on_ranks([](const World& world, BranchedNet& net, ShardedModule& sharded) {
    const auto before = weights_of(sharded);
    const std::string unit = c10::str("rank ", world->rank(), ": unit 'a'");
    torch::NoGradGuard no_grad;
    torch::Tensor weight = net->a->weight;
    const std::vector<std::function<void()>> writes = {
        [&] { weight.data().set_(torch::ones({5, 4}, at::kDouble)); }, [&] { weight.resize_({100}); },
        [&] { weight.data().resize_({2}); }, [&] { weight.t_(); },
        [&] { torch::mul_out(weight, torch::ones({3}, at::kDouble), torch::ones({3}, at::kDouble)); }};
    for (const auto& write : writes) {
      expect_error(write, {unit.c_str(), "'a.weight'", "changed the shape, the strides"});
    }
    EXPECT_EQ(net->a->weight.sizes(), at::IntArrayRef({5, 4}));
    expect_same(weights_of(sharded), before);
  });
}

TEST_P(WriteThroughOnRanks, AFailedOperatorWritesNothing) {
  on_ranks([](const World&, BranchedNet& net, ShardedModule& sharded) {
    const auto before = weights_of(sharded);
    torch::NoGradGuard no_grad;
    EXPECT_ANY_THROW(net->a->weight.copy_(torch::ones({3}, at::kDouble)));
    EXPECT_ANY_THROW(torch::_foreach_add_({net->a->bias, net->b->bias}, {torch::ones({5}), torch::ones({4})}));
    expect_same(weights_of(sharded), before);
  });
}

TEST_P(WriteThroughOnRanks, InsideAScopeThatPins) {
  on_ranks([](const World& world, BranchedNet& net, ShardedModule& sharded) {
    const bool in_place = [&] {
      sharded.unshard();
      base::MutexLock lock(sharded.engine().units().front()->mutex);
      return sharded.engine().units().front()->buffers.reads_in_place();
    }();
    auto want = weights_of(sharded);
    sharded.pin({net->a->weight}, [&] {
      if (in_place) {
        expect_error([&] { net->a->weight.data().fill_(2); }, {"unit 'a'", "fill_", "pinned", "with_full_params"});
        return;
      }
      net->a->weight.data().fill_(2);
      EXPECT_EQ(net->a->weight.const_data_ptr<double>()[19], 2);
      want["a.weight"] = torch::full({5, 4}, 2.0, at::kDouble);
    });
    expect_same(weights_of(sharded), want);
    EXPECT_TRUE(same_bits(net->a->weight.detach().clone(), want["a.weight"])) << world->rank();
  });
}

TEST_P(WriteThroughOnRanks, OutsideOfTheUnitsOfAScope) {
  on_ranks([](const World&, BranchedNet& net, ShardedModule& sharded) {
    auto want = weights_of(sharded);
    sharded.summon_full_params({.recurse = false, .writeback = false}, [&] {
      net->scale.data().fill_(4);      // of the root: discarded
      net->a->weight.data().fill_(2);  // of another unit
    });
    want["a.weight"].fill_(2);
    expect_same(weights_of(sharded), want);
  });
}

// ---------------------------------------------------------------- units without an order, parameters without values

// Initialisation after sharding must not look like the order of forward.
TEST_P(WriteThroughOnRanks, AutomaticUnitsDoNotSeeIt) {
  const auto order_of = [&](bool writes) {
    ExecutionOrder order;
    run_ranks(GetParam(), [&](const World& world) {
      auto net = testing::seeded([] { return BranchedNet(); });
      auto sharded = fully_shard(*net, testing::automatic(world));
      if (writes) {
        std::vector<torch::Tensor> parameters = net->parameters();
        for (size_t i = parameters.size(); i-- > 0;) parameters[i].data().mul_(0.5);
      }
      net->loss(x).backward();
      if (world->rank() == 0) order = sharded->execution_order();
      net->spare->bias.data().fill_(1);
      EXPECT_TRUE(same_bits(net->spare->bias.detach().clone(), torch::ones({2}, at::kDouble)));
    });
    return order;
  };
  EXPECT_EQ(order_of(true), order_of(false));
}

TEST_P(WriteThroughOnRanks, ParametersFromTheMetaDevice) {
  run_ranks(GetParam(), [&](const World& world) {
    torch::nn::Linear plain(4, 5), linear(4, 5);
    for (torch::Tensor& parameter : linear->parameters()) {
      const torch::Tensor meta = torch::empty_like(parameter, torch::TensorOptions().device(torch::kMeta));
      parameter.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
    }
    Options options;
    options.communicator = world;
    options.device = torch::kCPU;
    auto sharded = fully_shard(*linear, options);
    torch::NoGradGuard no_grad;
    for (auto* net : {&plain, &linear}) {
      (*net)->weight.uniform_(-1, 1, generator(8));
      (*net)->bias.fill_(0.25);
    }
    expect_same(weights_of(*sharded), weights_of(*plain));
  });
}

struct OptionCase {
  const char* name;
  const char* communicator;
  std::function<void(Options&)> change;
};
class WriteThroughOptions : public ::testing::TestWithParam<OptionCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, WriteThroughOptions,
    ::testing::Values(OptionCase{"read_only", "shm", [](Options& o) { o.debug.read_only_parameters = true; }},
                      OptionCase{"read_only_low", "shm",
                                 [](Options& o) {
                                   o.debug.read_only_parameters = true;
                                   o.param_dtype = at::kBFloat16;
                                 }},
                      OptionCase{"parked", "gloo", [](Options& o) { o.reshard_after_forward = 2; }},
                      OptionCase{"parked_shm", "shm", [](Options& o) { o.reshard_after_forward = 2; }},
                      OptionCase{"files", "gloo",
                                 [](Options& o) {
                                   o.cpu_offload = true;
                                   o.offload_path = ::testing::TempDir();
                                 }},
                      OptionCase{"hosts", "hosts", [](Options&) {}},
                      OptionCase{"hosts_rows", "hosts", [](Options& o) { o.shard_cut = ShardCut::kRows; }},
                      OptionCase{"keep_memory", "gloo", [](Options& o) { o.keep_memory = true; }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(WriteThroughOptions, BetweenStepsAndAfterForward) {
  run_ranks(4,
            [&](const World& world) {
              const auto make = [] { return std::vector<torch::Tensor>{numbers({9, 5}), numbers({5, 9})}; };
              torch::nn::ModuleList plain, list;
              for (const torch::Tensor& value : make()) {
                plain->push_back(Bag(std::vector<torch::Tensor>{value.clone()}));
                list->push_back(Bag(std::vector<torch::Tensor>{value.clone()}));
              }
              Options options;
              options.communicator = world;
              options.auto_wrap_policy = testing::every_module();
              GetParam().change(options);
              auto sharded = fully_shard(*list, options);
              const auto step = [&](torch::nn::ModuleList& net, int round) {
                const std::vector<torch::Tensor> p = net->parameters();
                const torch::Tensor x = torch::ones({2, 9}, p[0].options().requires_grad(false));
                const torch::Tensor loss = x.mm(p[0]).mm(p[1]).sum();
                p[round % 2].data().mul_(0.5);  // released, and partly kept (parked)
                p[1].data()[2].fill_(round);
                loss.backward();
                torch::NoGradGuard no_grad;
                p[0].add_(1);
              };
              for (int round = 0; round < 4; ++round) {
                step(plain, round);
                step(list, round);
                expect_same(weights_of(*sharded), weights_of(*plain));
                sharded->zero_grad();
              }
            },
            {.communicator = GetParam().communicator});
}

// Ranks come to reads and writes at different times.
TEST(WriteThroughRaces, ReadersOfSharedMemorySeeOneVersion) {
  for (const ShardCut cut : {ShardCut::kFlat, ShardCut::kRows}) {
    run_ranks(3, [&](const World& world) {
      Bag bag(std::vector<torch::Tensor>{numbers({67, 31}), numbers({13})});
      Options options;
      options.communicator = world;
      options.shard_cut = cut;
      auto sharded = fully_shard(*bag, options);
      for (int round = 0; round < 40; ++round) {
        if (round % 3 == world->rank()) std::this_thread::sleep_for(std::chrono::microseconds(200));
        bag->parameters()[round % 2].data().fill_(round);
        torch::NoGradGuard no_grad;
        const torch::Tensor read = bag->parameters()[round % 2].clone();
        EXPECT_TRUE((read == round).all().item<bool>()) << round;
      }
    });
  }
}

}  // namespace
}  // namespace fsdp
