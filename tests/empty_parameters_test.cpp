// Parameters without elements, alone in their unit, alone with their dtype, or beside others; on every communicator.
#include "fsdp/fsdp.h"
#include "fsdp/state_dict.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::numbers;

struct EmptyImpl : torch::nn::Module {
  explicit EmptyImpl(at::ScalarType dtype) { e = register_parameter("e", torch::empty({0, 3}, dtype)); }
  torch::Tensor e;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    empty = register_module("empty", std::make_shared<EmptyImpl>(at::kDouble));
    of_its_dtype = register_parameter("of_its_dtype", torch::empty({2, 0}, at::kFloat));
    beside = register_parameter("beside", torch::empty({0}, at::kDouble));
    w = register_parameter("w", numbers({3, 3}).to(at::kDouble));
  }
  torch::Tensor loss() {
    torch::Tensor y = torch::tanh(w).sum() + empty->e.sum() + of_its_dtype.sum().to(at::kDouble);
    return y.pow(2) + beside.exp().sum();
  }
  std::shared_ptr<EmptyImpl> empty;
  torch::Tensor of_its_dtype, beside, w;
};

struct Case {
  int ranks;
  const char* communicator;
  bool use_orig_params, automatic;
};

class EmptyParameters : public ::testing::TestWithParam<Case> {
 protected:
  static Options options_over(const std::shared_ptr<Communicator>& world) {
    Options options;
    options.communicator = world;
    options.use_orig_params = GetParam().use_orig_params;
    if (GetParam().automatic) {
      options.auto_units.emplace().target_bytes = 16;
    } else {
      options.auto_wrap_policy = testing::every_module();
    }
    return options;
  }
};

TEST_P(EmptyParameters, TrainAsInOneProcess) {
  NetImpl plain;
  torch::optim::AdamW reference(plain.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    reference.zero_grad();
    plain.loss().backward();
    reference.step();
  }
  testing::run_ranks(GetParam().ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       auto net = std::make_shared<NetImpl>();
                       auto sharded = fully_shard(*net, options_over(world));
                       std::optional<torch::optim::AdamW> optimizer;
                       for (int step = 0; step < 3; ++step) {
                         sharded->zero_grad();
                         net->loss().backward();
                         if (!optimizer) optimizer.emplace(sharded->parameters(), 0.1);
                         optimizer->step();
                       }
                       for (const auto& [name, weight] : testing::weights_of(*sharded)) {
                         const torch::Tensor want = plain.named_parameters()[name];
                         EXPECT_EQ(weight.sizes(), want.sizes()) << name;
                         EXPECT_TRUE(torch::allclose(weight, want, 1e-12, 1e-12)) << name;
                       }
                     },
                     {.communicator = GetParam().communicator});
}

TEST_P(EmptyParameters, HaveGradientsWhereTheyAreSummoned) {
  testing::run_ranks(GetParam().ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       auto net = std::make_shared<NetImpl>();
                       auto sharded = fully_shard(*net, options_over(world));
                       net->loss().backward();
                       SummonOptions with_gradients;
                       with_gradients.with_grads = true;
                       sharded->summon_full_params(with_gradients, [&] {
                         for (const auto& parameter : net->named_parameters()) {
                           ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
                           EXPECT_EQ(parameter.value().grad().sizes(), parameter.value().sizes()) << parameter.key();
                         }
                       });
                     },
                     {.communicator = GetParam().communicator});
}

// Adagrad's constructor makes state for each leaf, and its step needs state for each gradient.
TEST_P(EmptyParameters, KeepAdagradsStateWhenStateIsLoaded) {
  testing::run_ranks(GetParam().ranks,
                     [&](const std::shared_ptr<Communicator>& world) {
                       auto net = std::make_shared<NetImpl>();
                       auto sharded = fully_shard(*net, options_over(world));
                       net->loss().backward();
                       torch::optim::Adagrad optimizer(sharded->parameters(), 0.1);
                       optimizer.step();
                       auto adapter = state_of(optimizer);
                       load_full_optimizer_state(*sharded, *adapter, full_optimizer_state(*sharded, *adapter));
                       sharded->zero_grad();
                       net->loss().backward();
                       EXPECT_NO_THROW(optimizer.step());
                     },
                     {.communicator = GetParam().communicator});
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const char* communicator : {"gloo", "shm"}) {
    for (int ranks : {1, 2, 3}) {
      cases.push_back({ranks, communicator, true, false});
      cases.push_back({ranks, communicator, false, false});
      cases.push_back({ranks, communicator, true, true});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, EmptyParameters, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& at = info.param;
  return c10::str(at.communicator, "_", at.ranks, at.automatic ? "_automatic" : at.use_orig_params ? "_orig" : "_flat");
});

}  // namespace
}  // namespace fsdp
