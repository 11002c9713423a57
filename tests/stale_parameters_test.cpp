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

}  // namespace
}  // namespace fsdp
