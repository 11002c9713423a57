// Rule R6: a parameter that leaves the engine, or would be in two units, raises an error that names it.
#include <sstream>

#include "engine/engine.h"
#include "support/nets/two_layers.h"
#include "support/training/sharding.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::expect_error;
using testing::shard_strictly;

struct NetImpl : testing::TwoLayersImpl {
  NetImpl() : TwoLayersImpl(4, 4, 4) { second->bias.set_requires_grad(false); }
  torch::Tensor loss() { return forward(torch::ones({2, 4}, first->weight.options())).sum(); }
};

// Replaces the data without the dispatcher, as some code does.
void replace_data(const torch::Tensor& tensor, const torch::Tensor& data) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

class Membership : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    sharded = fully_shard(*net, testing::one_rank_options());
    sharded->engine().gatherer().set_strict(GetParam());
  }
  void train() {
    net->loss().backward();
    sharded->clip_grad_norm_(1);
  }
  std::shared_ptr<NetImpl> net;
  std::shared_ptr<ShardedModule> sharded;
};
INSTANTIATE_TEST_SUITE_P(Strict, Membership, ::testing::Bool());

TEST_P(Membership, ReplacedData) {
  replace_data(net->first->weight, torch::ones({4, 4}));
  expect_error([&] { train(); }, {"'first.weight'", "has left the engine"});
}

TEST_P(Membership, ReplacedDataInTheMiddleOfTraining) {
  train();
  replace_data(net->second->weight, torch::ones({4, 4}));
  sharded->parameters()[0].mutable_grad().reset();
  expect_error([&] { train(); }, {"'second.weight'", "has left the engine"});
}

TEST_P(Membership, ReplacedDataOfAFrozenParameter) {
  replace_data(net->second->bias, torch::ones({4}));
  expect_error([&] { train(); }, {"'second.bias'", "has left the engine"});
}

TEST_P(Membership, TheWholeModuleIsReplaced) {
  for (torch::Tensor& parameter : net->parameters()) replace_data(parameter, torch::ones(parameter.sizes()));
  std::string message = expect_error([&] { train(); }, {"has left the engine"});
  EXPECT_TRUE(message.find("'first.") != std::string::npos || message.find("'second.") != std::string::npos);
}

// Replacing a parameter's data is refused, even if no training follows, and the module stays unchanged.
TEST_P(Membership, ReplacingDataIsRefused) {
  torch::NoGradGuard inference;
  const torch::Tensor loss = net->loss();
  const auto refused = [&](const std::function<void()>& replace) {
    expect_error(replace, {"unit '", "'first.weight'", "would leave the engine", "to()", "before fully_shard"});
    EXPECT_EQ(net->first->weight.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(net->loss(), loss));
  };
  refused([&] { net->to(torch::kDouble); });
  refused([&] { net->to(torch::kHalf); });
  refused([&] { net->to(torch::kCPU, torch::kBFloat16); });
  refused([&] { net->first->weight.set_data(torch::ones({4, 4})); });
  refused([&] { net->first->weight.set_data(net->second->weight); });
  refused([&] { sharded->with_full_params([&] { net->first->weight.set_data(net->first->weight.clone()); }); });
  torch::AutoGradMode enable(true);
  train();
}

TEST_P(Membership, ConversionAfterAStepIsRefused) {
  train();
  sharded->zero_grad();
  expect_error([&] { net->to(torch::kBFloat16); }, {"would leave the engine"});
  train();
}

TEST_P(Membership, ReplacingTheDataOfCopiesIsNot) {
  torch::Tensor alias = net->first->weight.detach(), same = net->first->weight;
  same.set_data(alias);
  alias.set_data(torch::ones({2}));
  EXPECT_EQ(alias.numel(), 2);
  train();
}

// The shards would keep the old values, so no call of the handle may silently ignore the replacement.
TEST_P(Membership, CallsOfTheHandleNoticeToo) {
  for (torch::Tensor& parameter : net->parameters()) replace_data(parameter, torch::ones(parameter.sizes()));
  expect_error([&] { sharded->zero_grad(); }, {"has left the engine"});
  expect_error([&] { sharded->clip_grad_norm_(1); }, {"has left the engine"});
  expect_error([&] { sharded->for_each_full_parameter([](const std::string&, const torch::Tensor&) {}); },
               {"has left the engine"});
  expect_error([&] { sharded->with_full_params([] {}); }, {"has left the engine"});
}

TEST_P(Membership, LoadingAnArchiveReplacesData) {
  std::stringstream archive;
  torch::save(testing::seeded([] { return std::make_shared<NetImpl>(); }), archive);
  expect_error(
      [&] {
        torch::load(net, archive);
        train();
      },
      {"'first.weight'", "aten::set_"});
}

TEST_P(Membership, NoConversionIsNoProblem) {
  net->to(torch::kFloat);
  net->to(torch::kCPU);
  net->train();
  train();
  EXPECT_EQ(net->named_parameters().size(), 4);
}

TEST_P(Membership, ReplacedStorage) {
  torch::NoGradGuard no_grad;
  expect_error([&] { net->first->weight.set_(torch::ones({4, 4})); }, {"'first.weight'", "set_"});
  expect_error([&] { net->first->weight.resize_({5, 5}); }, {"'first.weight'", "resize_"});
  expect_error([&] { net->first->weight.t_(); }, {"'first.weight'", "t_"});
  torch::AutoGradMode enable(true);
  train();
}

TEST_P(Membership, FreezingAndUnfreezing) {
  const auto has_gradient = [&](const char* name) { return testing::gradients_of(*sharded).at(name).defined(); };
  net->first->weight.set_requires_grad(false);
  train();
  EXPECT_FALSE(has_gradient("first.weight"));
  net->first->weight.set_requires_grad(true);
  sharded->zero_grad();
  train();
  EXPECT_TRUE(has_gradient("first.weight"));
  net->second->bias.requires_grad_(true);
  train();
  EXPECT_TRUE(has_gradient("second.bias"));
}

TEST_P(Membership, AKeyedTensorWithAForeignStorage) {
  torch::Tensor keyed = net->first->weight.detach();
  keyed.unsafeGetTensorImpl()->set_storage_keep_dtype(torch::ones({4, 4}).storage());
  torch::NoGradGuard no_grad;
  expect_error([&] { (void)keyed.sum(); }, {"[4, 4]", "not their storage", "aten::sum"});
}

// An optimizer built on the leaves would continue with a copy.
TEST_P(Membership, AShardLeafThatWasReplaced) {
  sharded->parameters()[0].set_data(torch::zeros({16}));
  expect_error([&] { train(); }, {"'first.weight'", "shard"});
}

// ---- at annotation

TEST(MembershipAtAnnotation, ParametersThatOverlapInMemory) {
  torch::Tensor memory = torch::arange(12).to(torch::kFloat);
  Bag bag(std::vector<torch::Tensor>{memory.narrow(0, 0, 8), memory.narrow(0, 6, 6)});
  expect_error([&] { shard_strictly(*bag); }, {"'p0'", "'p1'", "memory"});
}

TEST(MembershipAtAnnotation, NeighboursInOneAllocation) {
  torch::Tensor memory = torch::arange(12).to(torch::kFloat);
  Bag bag(std::vector<torch::Tensor>{memory.narrow(0, 0, 6), memory.narrow(0, 6, 6)});
  auto sharded = shard_strictly(*bag);
  EXPECT_EQ(bag->parameters()[1].sum().item<float>(), 51);
  EXPECT_EQ(memory.sum().item<float>(), 66);  // the caller's own memory is unchanged
}

TEST(MembershipAtAnnotation, UnshardableTensors) {
  Bag complex(std::vector<torch::Tensor>{torch::ones({2}, torch::kComplexFloat)});
  expect_error([&] { shard_strictly(*complex); }, {"'p0'", "complex"});
  Bag sparse(std::vector<torch::Tensor>{torch::eye(3).to_sparse()});
  expect_error([&] { shard_strictly(*sparse); }, {"'p0'", "Sparse"});
  Bag with_gradient(std::vector<torch::Tensor>{torch::ones({2})});
  with_gradient->parameters()[0].sum().backward();
  expect_error([&] { shard_strictly(*with_gradient); }, {"'p0'", "gradient", "zero_grad"});
}

TEST(MembershipAtAnnotation, InferenceTensors) {
  torch::Tensor tensor;
  {
    c10::InferenceMode inference;
    tensor = torch::ones({3});
  }
  struct HolderImpl : torch::nn::Module {};
  HolderImpl holder;
  holder.register_parameter("weight", tensor, /*requires_grad=*/false);
  expect_error([&] { shard_strictly(holder); }, {"'weight'", "InferenceMode"});
}

TEST(MembershipAtAnnotation, ExpandedParametersAreStoredWhole) {
  torch::Tensor row = torch::arange(4).to(torch::kFloat);
  Bag bag(std::vector<torch::Tensor>{row.expand({3, 4})});
  auto sharded = shard_strictly(*bag);
  EXPECT_TRUE(torch::equal(bag->parameters()[0].detach().clone(), row.expand({3, 4}).contiguous()));
}

// ---- life and death

TEST(EngineLife, MemoryComesBackWhenTheModuleDies) {
  std::weak_ptr<engine::Engine> engine;
  {
    auto net = std::make_shared<NetImpl>();
    engine = shard_strictly(*net)->engine().weak_from_this();
    EXPECT_FALSE(engine.expired()) << "the parameters need it, though the handle is gone";
    net->loss().backward();
  }
  auto other = std::make_shared<NetImpl>();
  shard_strictly(*other);
  EXPECT_TRUE(engine.expired());
}

TEST(EngineLife, AModuleMayDieBeforeItsLoss) {
  torch::Tensor loss;
  {
    auto net = std::make_shared<NetImpl>();
    shard_strictly(*net);
    loss = net->loss();
  }
  auto other = std::make_shared<NetImpl>();
  shard_strictly(*other);
  EXPECT_NO_THROW(loss.backward());
}

TEST(EngineLife, TheHandleOutlivesTheModule) {
  std::shared_ptr<ShardedModule> sharded;
  torch::Tensor weight;
  {
    auto net = testing::seeded([] { return std::make_shared<NetImpl>(); });
    weight = net->first->weight.detach().clone();
    sharded = shard_strictly(*net);
  }
  EXPECT_TRUE(torch::equal(testing::weights_of(*sharded).at("first.weight"), weight));
}

TEST(EngineLife, ManyModulesOneAfterTheOther) {
  for (int i = 0; i < 20; ++i) {
    auto net = std::make_shared<NetImpl>();
    auto sharded = shard_strictly(*net);
    net->loss().backward();
    EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
  }
}

}  // namespace
}  // namespace fsdp
