// Tests which parameters go into which unit, under which names; and which parts of a module stay unchanged.
#include "fsdp/fully_shard.h"

#include "engine/engine.h"
#include "frontend/testing/outer_net.h"
#include "fsdp/fsdp.h"
#include "support/nets/tiny_lm.h"
#include "support/training/sharding.h"

namespace fsdp::frontend::unit_rule_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_same;
using testing::make_outer;
using testing::make_tiny_lm;
using testing::outer_input;
using testing::PairImpl;
using testing::plain_options;
using testing::TinyLM;
using testing::units_of;
using testing::weights_of;

TEST(UnitRule, WithoutAPolicyThereIsOneUnit) {
  auto net = make_outer();
  auto sharded = fully_shard(*net, plain_options());
  EXPECT_THAT(units_of(*sharded),
              ElementsAre("root: bias a.scale a.left.weight a.left.bias a.right.weight a.right.bias b.scale "
                          "b.left.weight b.left.bias b.right.weight b.right.bias"));
}

TEST(UnitRule, AUnitTakesTheRemainingParametersBelowIt) {
  auto net = make_outer();
  Options options = plain_options();
  options.auto_wrap_policy = module_class_policy<PairImpl>();
  EXPECT_THAT(units_of(*fully_shard(*net, options)),
              ElementsAre("a: a.scale a.left.weight a.left.bias a.right.weight a.right.bias",
                          "b: b.scale b.left.weight b.left.bias b.right.weight b.right.bias", "root: bias"));
}

TEST(UnitRule, NestedUnits) {
  auto net = make_outer();
  Options options = plain_options();
  options.auto_wrap_policy = [](const WrapCandidate& candidate) {
    return candidate.fqn == "a" || candidate.fqn == "a.left" || candidate.fqn == "b.right";
  };
  EXPECT_THAT(units_of(*fully_shard(*net, options)),
              ElementsAre("a.left: a.left.weight a.left.bias", "a: a.scale a.right.weight a.right.bias",
                          "b.right: b.right.weight b.right.bias", "root: bias b.scale b.left.weight b.left.bias"));
}

TEST(UnitRule, ManualAnnotationBottomUpEqualsThePolicy) {
  auto manual = make_outer(), by_policy = make_outer(), plain = make_outer();
  Options options = plain_options();
  auto inner = fully_shard(*manual->a->left, options);
  EXPECT_THAT(units_of(*inner), ElementsAre("root: weight bias"));
  auto middle = fully_shard(*manual->a, options);
  EXPECT_THAT(units_of(*middle), ElementsAre("left: left.weight left.bias", "root: scale right.weight right.bias"));
  auto outer = fully_shard(*manual, options);
  EXPECT_THAT(units_of(*outer),
              ElementsAre("a.left: a.left.weight a.left.bias", "a: a.scale a.right.weight a.right.bias",
                          "root: bias b.scale b.left.weight b.left.bias b.right.weight b.right.bias"));
  // Handles of inner modules now refer to the whole tree.
  EXPECT_EQ(&inner->engine(), &outer->engine());
  EXPECT_EQ(units_of(*inner), units_of(*outer));
  EXPECT_EQ(inner->parameters().size(), outer->parameters().size());

  options.auto_wrap_policy = [](const WrapCandidate& c) { return c.fqn == "a" || c.fqn == "a.left"; };
  EXPECT_EQ(units_of(*fully_shard(*by_policy, options)), units_of(*outer));
  outer->engine().gatherer().set_strict(true);
  manual->forward(outer_input()).pow(2).sum().backward();
  plain->forward(outer_input()).pow(2).sum().backward();
  expect_same(testing::gradients_of(*inner), testing::gradients_of(*plain));
}

TEST(UnitRule, ManualAnnotationAfterTraining) {
  auto net = make_outer(), plain = make_outer();
  Options options = plain_options();
  auto inner = testing::shard_strictly(*net->a, options);
  net->a->forward(outer_input()).sum().backward();
  inner->zero_grad();
  auto outer = testing::shard_strictly(*net, options);
  net->forward(outer_input()).pow(2).sum().backward();
  plain->forward(outer_input()).pow(2).sum().backward();
  expect_same(testing::gradients_of(*outer), testing::gradients_of(*plain));
}

TEST(UnitRule, APolicyOverAnAnnotatedInnerModule) {
  auto net = make_outer();
  Options options = plain_options();
  fully_shard(*net->a, options);
  options.auto_wrap_policy = module_class_policy<PairImpl, torch::nn::LinearImpl>();
  EXPECT_THAT(units_of(*fully_shard(*net, options)),
              ElementsAre("a: a.scale a.left.weight a.left.bias a.right.weight a.right.bias",
                          "b.left: b.left.weight b.left.bias", "b.right: b.right.weight b.right.bias", "b: b.scale",
                          "root: bias"));
}

TEST(UnitRule, NothingLeftForTheRootIsNoError) {
  torch::nn::Sequential net{torch::nn::Linear(2, 3), torch::nn::Linear(3, 2)};
  auto sharded = testing::shard_strictly(*net);
  EXPECT_THAT(units_of(*sharded), ElementsAre("0: 0.weight 0.bias", "1: 1.weight 1.bias"));
  net->forward(outer_input()).sum().backward();
}

TEST(UnitRule, Siblings) {
  auto net = make_outer(), plain = make_outer();
  Options options = plain_options();
  auto pair = fully_shard({net->a, net->b}, options);
  EXPECT_THAT(units_of(*pair),
              ElementsAre("0+1: 0.scale 0.left.weight 0.left.bias 0.right.weight 0.right.bias 1.scale 1.left.weight "
                          "1.left.bias 1.right.weight 1.right.bias"));
  pair->engine().gatherer().set_strict(true);
  net->forward(outer_input()).sum().backward();
  net->zero_grad();
  auto outer = testing::shard_strictly(*net, options);
  EXPECT_THAT(units_of(*outer),
              ElementsAre("a+b: a.scale a.left.weight a.left.bias a.right.weight a.right.bias b.scale b.left.weight "
                          "b.left.bias b.right.weight b.right.bias",
                          "root: bias"));
  net->forward(outer_input()).pow(2).sum().backward();
  plain->forward(outer_input()).pow(2).sum().backward();
  expect_same(testing::gradients_of(*outer), testing::gradients_of(*plain));
  expect_same(weights_of(*outer), weights_of(*plain));
}

TEST(UnitRule, SharedParametersGoToTheLowestCommonAncestor) {
  struct SharingImpl : torch::nn::Module {
    SharingImpl() {
      a = register_module("a", std::make_shared<PairImpl>());
      a->right->register_parameter("tied", a->left->weight);  // below a
      b = register_module("b", std::make_shared<PairImpl>());
      b->register_parameter("tied", a->left->bias);  // below the root
    }
    std::shared_ptr<PairImpl> a, b;
  };
  SharingImpl net;
  Options options = plain_options();
  options.auto_wrap_policy = module_class_policy<PairImpl, torch::nn::LinearImpl>();
  EXPECT_THAT(units_of(*fully_shard(net, options)),
              ElementsAre("a.right: a.right.weight a.right.bias", "a: a.scale a.left.weight=a.right.tied",
                          "b.left: b.left.weight b.left.bias", "b.right: b.right.weight b.right.bias", "b: b.scale",
                          "root: a.left.bias=b.tied"));
}

TEST(UnitRule, AModuleRegisteredTwice) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() {
      layer = register_module("first", torch::nn::Linear(2, 2));
      register_module("second", layer);
    }
    torch::Tensor loss() { return layer(layer(outer_input())).pow(2).sum(); }
    torch::nn::Linear layer{nullptr};
  };
  auto make = [] { return std::make_shared<TwiceImpl>(); };
  for (bool manual : {true, false}) {
    auto net = testing::seeded(make), plain = testing::seeded(make);
    Options options = testing::one_rank_options();
    if (manual) testing::shard_strictly(*net->layer, options);
    auto sharded = testing::shard_strictly(*net, options);
    net->loss().backward();
    plain->loss().backward();
    expect_same(testing::gradients_of(*sharded), testing::gradients_of(*plain));
  }
}

// ---- what stays unchanged

TEST(FullyShard, StructureAndNamesStay) {
  auto net = make_outer(), plain = make_outer();
  std::vector<const void*> before;
  for (const auto& module : net->modules()) before.push_back(module.get());
  auto sharded = testing::shard_strictly(*net);
  std::vector<const void*> after;
  for (const auto& module : net->modules()) after.push_back(module.get());
  EXPECT_EQ(before, after);
  auto got = net->named_parameters(), want = plain->named_parameters();
  ASSERT_EQ(got.keys(), want.keys());
  for (const auto& entry : want) {
    const torch::Tensor& parameter = got[entry.key()];
    EXPECT_EQ(parameter.sizes(), entry.value().sizes());
    EXPECT_EQ(parameter.strides(), entry.value().strides());
    EXPECT_EQ(parameter.dtype(), entry.value().dtype());
    EXPECT_EQ(parameter.requires_grad(), entry.value().requires_grad());
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(parameter.data().sizes(), entry.value().sizes());
  }
  EXPECT_TRUE(net->a->left->weight.is_same(got["a.left.weight"]));
  expect_same(weights_of(*sharded), weights_of(*plain));
}

TEST(FullyShard, TheWrapperIsThin) {
  Options options = testing::one_rank_options();
  FullyShardedDataParallel<TinyLM> model(make_tiny_lm({}), options);
  TinyLM plain = make_tiny_lm({});
  torch::Tensor ids = testing::batch_of(0, 0);
  EXPECT_TRUE(torch::equal(model.forward(ids), plain->forward(ids)));
  EXPECT_TRUE(torch::equal(model(ids), model->forward(ids)));
  EXPECT_EQ(model.parameters().size(), plain->parameters().size());
  EXPECT_EQ(model.named_parameters().at(0).first, "embed.weight");
  model.eval();
  EXPECT_FALSE(model.module()->is_training());
  model.train();
  model->loss(ids).backward();
  plain->loss(ids).backward();
  expect_same(testing::gradients_of(model.sharded()), testing::gradients_of(*plain));
  double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
  EXPECT_NEAR(model.clip_grad_norm_(0.1).item<double>(), norm, 1e-6);
  model.zero_grad();
  EXPECT_FALSE(model.parameters()[0].grad().defined());

  FullyShardedDataParallel<std::shared_ptr<PairImpl>> pair(std::make_shared<PairImpl>(), plain_options());
  EXPECT_EQ(pair.forward(outer_input()).sizes(), (std::vector<int64_t>{3, 2}));
}

}  // namespace
}  // namespace fsdp::frontend::unit_rule_test
