// Start-up on a device with streams: however a module gets to its device, it trains as on the CPU, to the bit.
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "support/nets/branched_net.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using namespace testing;  // fsdp::testing, not GoogleTest's

struct NetImpl : testing::BranchedNetImpl {
  NetImpl() : offset(register_buffer("offset", torch::rand({5}, at::kDouble))) {}
  torch::Tensor loss(const torch::Tensor& x) { return decode(encode(x) + offset).pow(2).mean(); }
  torch::Tensor offset;
};
TORCH_MODULE(Net);

Net make_net() { return Net(); }

void run_step(NetImpl& net, const RankStep& step) {
  const torch::Tensor loss = net.loss(step.x());
  step.see(loss);
  step.backward(loss);
}

// Makes a rank's module, and may change the options, before fully_shard.
using Make = std::function<Net(int rank, Options& options)>;

std::vector<Outcome> train(const ShardingCase& sharding, const Make& make) {
  std::vector<Outcome> outcomes(sharding.world_size);
  run_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    Options options = options_of(sharding, world);
    Net net = make(world->rank(), options);
    // Replays draw from the generator, which all ranks (threads) share.
    world->barrier({"all modules are made", 0, Pass::kSetup});
    auto sharded = shard(*net, sharding, options);
    EXPECT_EQ(net->a->weight.device(), test_device());
    EXPECT_EQ(net->offset.device(), test_device());
    outcomes[world->rank()] = train_sharded(*net, *sharded, run_step, world->rank());
  });
  return outcomes;
}

// Both runs reduce over Gloo in the same order, so results are the same to the bit.
void expect_same(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    testing::expect_same(got[rank].weights, want[rank].weights);
    ASSERT_EQ(got[rank].seen.size(), want[rank].seen.size());
    for (size_t step = 0; step < want[rank].seen.size(); ++step) {
      EXPECT_TRUE(same_bits(got[rank].seen[step].at(0), want[rank].seen[step].at(0))) << rank << ", step " << step;
    }
  }
}

class DeviceStartUp : public ::testing::TestWithParam<ShardingCase> {
 protected:
  void expect_as_on_the_cpu(const Make& make) {
    std::vector<Outcome> want;
    {
      const DeviceKindGuard cpu(DeviceKind::kCpu);
      want = train(GetParam(), [](int, Options&) { return seeded(make_net); });
    }
    const DeviceKindGuard simulated(DeviceKind::kSimulated);
    expect_same(train(GetParam(), make), want);
    expect_same(train(GetParam(),
                      [&](int rank, Options& options) {
                        options.cpu_offload = true;
                        return make(rank, options);
                      }),
                want);
  }
};

TEST_P(DeviceStartUp, AWholeModuleOfTheHostIsStreamedToIt) {
  expect_as_on_the_cpu([](int, Options& options) {
    options.device = test_device();
    return seeded(make_net);
  });
}

TEST_P(DeviceStartUp, AModuleThatIsThereWhole) {
  expect_as_on_the_cpu([](int, Options&) {
    Net net = seeded(make_net);
    net->to(test_device());
    return net;
  });
}

TEST_P(DeviceStartUp, ADeferredModuleOfTheHost) {
  expect_as_on_the_cpu([](int, Options& options) {
    options.device = test_device();
    return seeded([] { return deferred_init(make_net); });
  });
}

// Random numbers of the simulated device are those of the host: they are drawn on the host and copied.
TEST_P(DeviceStartUp, ADeferredModuleThatMovesItself) {
  expect_as_on_the_cpu([](int, Options&) {
    return seeded([] {
      return deferred_init([] {
        Net net;
        net->to(test_device());
        return net;
      });
    });
  });
}

TEST_P(DeviceStartUp, RankZeroSendsItsValues) {
  expect_as_on_the_cpu([](int rank, Options& options) {
    options.device = test_device();
    options.sync_module_states = true;
    return rank == 0   ? seeded(make_net)
           : rank == 1 ? seeded([] { return deferred_init(make_net); }, /*seed=*/99)
                       : seeded(make_net, /*seed=*/99);
  });
}

TEST_P(DeviceStartUp, AModuleThatIsInitialisedUnitByUnit) {
  const Net whole = seeded(make_net);
  expect_as_on_the_cpu([&](int, Options& options) {
    Net net = seeded([] { return deferred_init(make_net); }, /*seed=*/5);
    net->offset.copy_(whole->offset);
    auto values = std::make_shared<std::map<const torch::nn::Module*, std::string>>();
    for (const auto& entry : net->named_modules("", /*include_self=*/true)) {
      (*values)[entry.value().get()] = entry.key();
    }
    options.device = test_device();
    options.param_init_fn = [&whole, values](torch::nn::Module& module) {
      const std::string& path = values->at(&module);
      for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
        entry.value().copy_(whole->named_parameters()[path.empty() ? entry.key() : path + "." + entry.key()]);
      }
    };
    return net;
  });
}

std::vector<ShardingCase> cases() {
  using enum ShardingStrategy;
  return {{1, kFullShard, true, true},    {2, kShardGradOp, false, false},
          {3, kFullShard, true, false},   {2, kNoShard, true, true},
          {4, kHybridShard, true, false}, {2, kFullShard, true, true, /*automatic=*/true}};
}
INSTANTIATE_TEST_SUITE_P(Shardings, DeviceStartUp, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace fsdp
