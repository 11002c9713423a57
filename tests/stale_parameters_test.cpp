// Tests that units gathered between backward and the optimizer's step do not carry old values into later steps, both
// with parameters that are released to a smaller group (ReshardAfterForward) and without.
#include "fsdp/fsdp.h"
#include "support/devices/test_device.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::numbers;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i) layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(4, 4)));
    to(at::kDouble);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Linear& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

torch::Tensor input() { return numbers({5, 4}).to(at::kDouble); }

// An action on a model in training between backward and step.
struct Between {
  const char* name;
  std::function<void(NetImpl&, ShardedModule&)> act;
};

void forward_without_gradients(NetImpl& net) {
  torch::NoGradGuard no_grad;
  net.forward(input());
}

std::vector<Between> acts() {
  return {{"forward", [](NetImpl& net, ShardedModule&) { forward_without_gradients(net); }},
          {"unshard", [](NetImpl&, ShardedModule& sharded) { sharded.unshard(); }},
          {"read", [](NetImpl& net, ShardedModule&) { (void)net.layers[1]->weight.detach().clone(); }},
          {"summon", [](NetImpl&, ShardedModule& sharded) { sharded.with_full_params([] {}); }},
          {"write", [](NetImpl& net, ShardedModule& sharded) {
             forward_without_gradients(net);
             torch::NoGradGuard no_grad;
             for (const torch::Tensor& leaf : sharded.parameters()) leaf.mul_(1.0);
           }}};
}

constexpr int kSteps = 4;

template <typename Between>
std::vector<double> losses(NetImpl& net, const std::vector<torch::Tensor>& leaves, const Between& between) {
  torch::optim::SGD optimizer(leaves, 0.3);
  std::vector<double> result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss = net.forward(input()).pow(2).mean();
    loss.backward();
    result.push_back(loss.item<double>());
    between();
    optimizer.step();
  }
  return result;
}

struct Case {
  const char* communicator;
  std::optional<int> reshard_after_forward;
  std::optional<at::ScalarType> param_dtype;
};

class StaleParameters : public ::testing::TestWithParam<Case> {};

TEST_P(StaleParameters, AreNeverGatheredAgain) {
  auto plain = testing::seeded([] { return std::make_shared<NetImpl>(); });
  const std::vector<double> want = losses(*plain, plain->parameters(), [] {});
  for (const Between& between : acts()) {
    const auto body = [&](const std::shared_ptr<Communicator>& world) {
      auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
      Options options;
      options.communicator = world;
      options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
      options.param_dtype = GetParam().param_dtype;
      if (GetParam().reshard_after_forward) options.reshard_after_forward = *GetParam().reshard_after_forward;
      auto sharded = fully_shard(*net, options);
      const std::vector<double> got = losses(*net, sharded->parameters(), [&] { between.act(*net, *sharded); });
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(got[step], want[step], GetParam().param_dtype ? 1e-5 : 1e-12) << between.name << ", step " << step;
      }
    };
    testing::run_ranks(4, body, {.communicator = GetParam().communicator});
  }
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const char* communicator : {"gloo", "shm", "hosts"}) {
    for (std::optional<int> reshard : {std::optional<int>(), std::optional<int>(2)}) {
      cases.push_back({communicator, reshard, std::nullopt});
      cases.push_back({communicator, reshard, at::kFloat});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, StaleParameters, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& at = info.param;
  return c10::str(at.communicator, at.reshard_after_forward ? "_to_a_smaller_group" : "",
                  at.param_dtype ? "_in_fp32" : "");
});

// ---------------------------------------------------------------- writes without a version

// Each sets all elements of a leaf, past its version counter.
struct Write {
  const char* name;
  std::function<void(const torch::Tensor&, double)> apply;
};

std::vector<Write> writes() {
  return {{"data of a view", [](const torch::Tensor& leaf, double value) { leaf.view({-1}).data().fill_(value); }},
          {"pointer",
           [](const torch::Tensor& leaf, double value) { std::fill_n(leaf.data_ptr<double>(), leaf.numel(), value); }}};
}

std::string name_of(const std::tuple<Case, ShardCut>& parameters) {
  const auto& [at, cut] = parameters;
  return c10::str(at.communicator, cut == ShardCut::kRows ? "_rows" : "_flat",
                  at.reshard_after_forward ? "_to_a_smaller_group" : "", at.param_dtype ? "_in_fp32" : "");
}

class UncountedWrites : public ::testing::TestWithParam<std::tuple<Case, ShardCut>> {};

// All parameters stay gathered, or parked, from one forward to the next.
TEST_P(UncountedWrites, AreSeenByTheNextUse) {
  const auto& [at, cut] = GetParam();
  const auto body = [at = at, cut = cut](const std::shared_ptr<Communicator>& world) {
    auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    Options options;
    options.communicator = world;
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    options.param_dtype = at.param_dtype;
    options.shard_cut = cut;
    options.reshard_after_forward = at.reshard_after_forward ? ReshardAfterForward(*at.reshard_after_forward) : false;
    auto sharded = fully_shard(*net, options);
    double value = 0;
    for (const Write& write : writes()) {
      forward_without_gradients(*net);
      value += 0.25;
      world->barrier({"nobody reads", 0, Pass::kUser});
      {
        torch::NoGradGuard no_grad;
        for (const torch::Tensor& leaf : sharded->parameters()) write.apply(leaf, value);
      }
      world->barrier({"all have written", 0, Pass::kUser});
      torch::NoGradGuard no_grad;
      for (const torch::Tensor& parameter : net->parameters()) {
        EXPECT_TRUE((parameter.detach().clone() == value).all().item<bool>()) << write.name;
      }
    }
  };
  testing::run_ranks(4, body, {.communicator = at.communicator});
}

INSTANTIATE_TEST_SUITE_P(All, UncountedWrites,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::Values(ShardCut::kFlat, ShardCut::kRows)),
                         [](const auto& info) { return name_of(info.param); });

// A rank that takes pointers and writes nothing would otherwise gather without the others.
TEST(UncountedReads, OfOneRankGatherNothing) {
  testing::run_ranks(2, [](const std::shared_ptr<Communicator>& world) {
    auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    Options options;
    options.communicator = world;
    options.shard_cut = ShardCut::kRows;
    options.reshard_after_forward = false;
    auto sharded = fully_shard(*net, options);
    forward_without_gradients(*net);
    const int64_t gathers = sharded->diagnostics().stats().all_gathers;
    for (int round = 0; round < 3; ++round) {
      if (world->rank() == 0) (void)sharded->parameters().front().data_ptr();
      forward_without_gradients(*net);
    }
    EXPECT_EQ(sharded->diagnostics().stats().all_gathers, gathers);
  });
}

}  // namespace
}  // namespace fsdp
