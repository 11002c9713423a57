// Tests which parameters go into which unit, under which names, and which calls are refused.
#include "fsdp/fully_shard.h"
#include "fsdp/backends.h"

#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::frontend::fully_shard_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::make_tiny_lm;
using testing::run_ranks;
using testing::TinyLM;
using testing::TinyLMImpl;
using testing::weights_of;

// Returns "unit: parameter parameter" for each unit, in order.
std::vector<std::string> units_of(const ShardedModule& sharded) {
  std::vector<std::string> result;
  for (const auto& unit : sharded.engine().units()) {
    std::string line = unit->name() + ":";
    for (const auto& flat : unit->flat_parameters()) {
      for (const flat::ShardedParameter& parameter : flat->parameters()) {
        line += " " + parameter.fqn;
        for (const std::string& other : parameter.other_fqns) line += "=" + other;
      }
    }
    result.push_back(line);
  }
  return result;
}

struct PairImpl : torch::nn::Module {
  PairImpl() {
    left = register_module("left", torch::nn::Linear(2, 3));
    right = register_module("right", torch::nn::Linear(3, 2));
    scale = register_parameter("scale", torch::ones({2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return right(torch::tanh(left(x))) * scale; }
  torch::nn::Linear left{nullptr}, right{nullptr};
  torch::Tensor scale;
};

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    a = register_module("a", std::make_shared<PairImpl>());
    b = register_module("b", std::make_shared<PairImpl>());
    bias = register_parameter("bias", torch::zeros({2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return b->forward(a->forward(x)) + bias; }
  std::shared_ptr<PairImpl> a, b;
  torch::Tensor bias;
};
std::shared_ptr<OuterImpl> make_outer() {
  return testing::seeded([] { return std::make_shared<OuterImpl>(); });
}
const auto kX = torch::ones({3, 2});

Options plain_options() { return testing::one_rank_options_for_lists(); }

// ---- the unit rule

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
  manual->forward(kX).pow(2).sum().backward();
  plain->forward(kX).pow(2).sum().backward();
  expect_same(testing::gradients_of(*inner), testing::gradients_of(*plain));
}

TEST(UnitRule, ManualAnnotationAfterTraining) {
  auto net = make_outer(), plain = make_outer();
  Options options = plain_options();
  auto inner = testing::shard_strictly(*net->a, options);
  net->a->forward(kX).sum().backward();
  inner->zero_grad();
  auto outer = testing::shard_strictly(*net, options);
  net->forward(kX).pow(2).sum().backward();
  plain->forward(kX).pow(2).sum().backward();
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
  net->forward(kX).sum().backward();
}

TEST(UnitRule, Siblings) {
  auto net = make_outer(), plain = make_outer();
  Options options = plain_options();
  auto pair = fully_shard({net->a, net->b}, options);
  EXPECT_THAT(units_of(*pair),
              ElementsAre("0+1: 0.scale 0.left.weight 0.left.bias 0.right.weight 0.right.bias 1.scale 1.left.weight "
                          "1.left.bias 1.right.weight 1.right.bias"));
  pair->engine().gatherer().set_strict(true);
  net->forward(kX).sum().backward();
  net->zero_grad();
  auto outer = testing::shard_strictly(*net, options);
  EXPECT_THAT(units_of(*outer),
              ElementsAre("a+b: a.scale a.left.weight a.left.bias a.right.weight a.right.bias b.scale b.left.weight "
                          "b.left.bias b.right.weight b.right.bias",
                          "root: bias"));
  net->forward(kX).pow(2).sum().backward();
  plain->forward(kX).pow(2).sum().backward();
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
    torch::Tensor loss() { return layer(layer(kX)).pow(2).sum(); }
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
  EXPECT_EQ(pair.forward(kX).sizes(), (std::vector<int64_t>{3, 2}));
}

// ---- errors

TEST(FullyShardErrors, AnnotatedTwice) {
  auto net = make_outer();
  Options options = plain_options();
  fully_shard(*net->a, options);
  expect_error([&] { fully_shard(*net->a, options); }, {"twice", "'left.weight'", "'scale'"});
  fully_shard(*net, options);
  expect_error([&] { fully_shard(*net, options); }, {"twice", "'a.left.weight'", "'bias'"});
  expect_error([&] { fully_shard({net->a, net->a}, options); }, {"twice"});
}

// Also if the policy left no parameters for the module's own unit.
TEST(FullyShardErrors, ASecondCallIsNotIgnored) {
  torch::nn::Sequential net{torch::nn::Linear(2, 3), torch::nn::Linear(3, 2)};
  Options options = plain_options();
  options.auto_wrap_policy = testing::every_module();
  auto sharded = fully_shard(*net, options);
  ASSERT_THAT(units_of(*sharded), ElementsAre("0: 0.weight 0.bias", "1: 1.weight 1.bias"));
  Options without_policy = options, other = options;
  without_policy.auto_wrap_policy = nullptr;
  other.param_dtype = torch::kBFloat16;
  expect_error([&] { fully_shard(*net, other); }, {"twice", "Sequential", "'0.weight'", "would be ignored"});
  expect_error([&] { fully_shard(*net, options); }, {"twice"});
  struct ParentImpl : torch::nn::Module {};
  ParentImpl parent;
  parent.register_module("net", net.ptr());
  fully_shard(parent, without_policy);
  expect_error([&] { fully_shard(*net, without_policy); }, {"twice"});
  EXPECT_EQ(net->forward(kX).scalar_type(), torch::kFloat);
  net->forward(kX).sum().backward();
}

// Calls fully_shard on a parent of modules that were sharded one by one.
TEST(FullyShardErrors, OptionsThatApplyToNothing) {
  const auto sharded_children = [](Options options) {
    torch::nn::Sequential net{torch::nn::Linear(2, 3), torch::nn::Linear(3, 2)};
    fully_shard(*net->children()[0], options);
    options.sharding_strategy = ShardingStrategy::kShardGradOp;
    fully_shard(*net->children()[1], options);
    return net;
  };
  Options options = plain_options(), low = options;
  low.param_dtype = torch::kBFloat16;
  EXPECT_EQ(fully_shard(*sharded_children(low), options)->engine().units().size(), 2);
  EXPECT_EQ(fully_shard(*sharded_children(low), low)->engine().units().size(), 2);
  Options other = low;
  other.reduce_dtype = torch::kFloat;
  auto net = sharded_children(low);
  expect_error([&] { fully_shard(*net, other); }, {"Sequential", "reduce_dtype", "would apply to nothing", "inner"});
  other = options;
  other.auto_units.emplace();
  expect_error([&] { fully_shard(*net, other); }, {"Sequential", "auto_units", "nothing to cut"});
  EXPECT_EQ(fully_shard(*net, options)->engine().units().size(), 2);
}

// Once sharded, a parameter would change without the buffer that shares its memory.
TEST(FullyShardErrors, ABufferOverAParameter) {
  for (bool view : {false, true}) {
    auto net = make_outer();
    const torch::Tensor scale = net->b->scale.detach();
    net->a->register_buffer("scales", view ? scale.slice(0, 1, 2) : scale);
    net->a->register_buffer("others", torch::ones({4}));
    Options options = plain_options();
    expect_error([&] { fully_shard(*net, options); }, {"buffer 'a.scales'", "parameter 'b.scale'", "clone"});
    EXPECT_NO_THROW((void)net->b->scale.data_ptr());
  }
}

// Two buffers may overlap each other, and a buffer may lie next to a parameter in one storage.
TEST(FullyShardErrors, BuffersBesideParametersAreNone) {
  torch::nn::Module net("net");
  const torch::Tensor all = torch::arange(8.0);
  net.register_buffer("first", all.narrow(0, 0, 3));
  net.register_buffer("overlaps_first", all.narrow(0, 1, 2));
  net.register_parameter("weight", all.narrow(0, 3, 4));
  net.register_buffer("last", all.narrow(0, 7, 1));
  net.register_buffer("none", torch::Tensor());
  auto sharded = fully_shard(net, plain_options());
  EXPECT_TRUE(torch::equal(sharded->parameters()[0].detach(), torch::arange(3.0, 7.0)));
}

TEST(FullyShardErrors, ParentBeforeChild) {
  auto net = make_outer();
  Options options = plain_options();
  fully_shard(*net, options);
  std::string message = expect_error([&] { fully_shard(*net->a, options); }, {"'scale'"});
  EXPECT_THAT(message, HasSubstr("fsdp: "));
}

TEST(FullyShardErrors, AParameterInTwoUnits) {
  auto net = make_outer();
  net->b->register_parameter("tied", net->a->left->weight);
  Options options = plain_options();
  fully_shard(*net->a, options);
  expect_error([&] { fully_shard(*net, options); }, {"'b.tied'", "'a.left.weight'", "two units"});
  expect_error([&] { fully_shard(*net->b, options); }, {"'tied'"});
}

TEST(FullyShardErrors, EmptyUnits) {
  Options options = plain_options();
  torch::nn::Dropout dropout;
  expect_error([&] { fully_shard(*dropout, options); }, {"Dropout", "no parameters", "empty unit"});
  expect_error([&] { fully_shard(std::vector<std::shared_ptr<torch::nn::Module>>{}, options); }, {"empty list"});
  expect_error([&] { fully_shard({dropout.ptr(), dropout.ptr()}, options); }, {"twice"});
  expect_error([&] { fully_shard({torch::nn::Dropout().ptr(), dropout.ptr()}, options); }, {"empty unit"});
  expect_error([&] { fully_shard({std::shared_ptr<torch::nn::Module>(), dropout.ptr()}, options); }, {"null"});
}

TEST(FullyShardErrors, Options) {
  auto net = make_outer();
  expect_error([&] { fully_shard(*net, Options{}); }, {"communicator"});
  Options options = plain_options();
  options.param_dtype = torch::kInt;
  expect_error([&] { fully_shard(*net, options); }, {"Int", "floating point"});
  options = plain_options();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.reshard_after_forward = true;
  expect_error([&] { fully_shard(*net, options); }, {"reshard_after_forward", "SHARD_GRAD_OP"});
  options = plain_options();
  options.device = torch::kMeta;
  expect_error([&] { fully_shard(*net, options); }, {"meta"});
  options = plain_options();
  options.auto_wrap_policy = testing::every_module();
  expect_error([&] { fully_shard({net->a, net->b}, options); }, {"auto_wrap_policy", "list"});
  testing::shard_strictly(*net);  // the refused calls had no lasting effect
}

TEST(FullyShardErrors, OptionsThatMustAgree) {
  auto net = make_outer();
  Options options = plain_options(), other = options;
  fully_shard(*net->a, options);
  other.communicator = testing::one_rank();
  expect_error([&] { fully_shard(*net, other); }, {"communicator"});
  other = options;
  other.use_orig_params = false;
  expect_error([&] { fully_shard(*net, other); }, {"use_orig_params"});
  other = options;  // options that may differ
  other.param_dtype = torch::kBFloat16;
  other.sharding_strategy = ShardingStrategy::kShardGradOp;
  auto sharded = fully_shard(*net, other);
  EXPECT_EQ(net->a->scale.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->b->scale.scalar_type(), torch::kBFloat16);
}

TEST(FullyShardErrors, ABadPolicyLeavesTheModuleAlone) {
  auto net = make_outer(), plain = make_outer();
  Options options = plain_options();
  options.auto_wrap_policy = [](const WrapCandidate& candidate) -> bool {
    if (candidate.fqn == "b") throw std::runtime_error("policy");
    return true;
  };
  expect_error([&] { fully_shard(*net, options); }, {"policy"});
  expect_same(weights_of(*net), weights_of(*plain));
  EXPECT_NO_THROW((void)net->a->scale.data_ptr());
}

// ---- meta parameters

std::shared_ptr<OuterImpl> make_meta() {
  auto net = make_outer();
  for (auto& module : net->modules()) {
    for (auto& entry : module->named_parameters(/*recurse=*/false)) {
      torch::Tensor& parameter = entry.value();
      torch::Tensor meta = torch::empty_like(parameter, torch::TensorOptions().device(torch::kMeta));
      parameter.unsafeGetTensorImpl()->shallow_copy_from(meta.getIntrusivePtr());
    }
  }
  return net;
}

TEST(MetaParameters, NeedADevice) {
  auto net = make_meta();
  expect_error([&] { fully_shard(*net, plain_options()); }, {"meta", "Options::device", "'bias'"});
}

TEST(MetaParameters, MixedWithOthersAreRefused) {
  auto net = make_meta();
  torch::Tensor real = torch::ones({2});
  net->a->scale.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
  Options options = plain_options();
  expect_error([&] { fully_shard(*net, options); }, {"one device", "cpu: 'a.scale'", "meta: 'bias'"});
}

TEST(MetaParameters, FilledThroughShardSlicesEqualTheEagerModel) {
  for (int world_size : {1, 3}) {
    run_ranks(world_size, [](std::shared_ptr<Communicator> communicator) {
      auto eager = make_outer(), net = make_meta();
      Options options = testing::one_rank_options();
      options.communicator = communicator;
      options.device = torch::kCPU;
      auto sharded = testing::shard_strictly(*net, options);
      auto weights = weights_of(*eager);
      {
        torch::NoGradGuard no_grad;
        for (ShardSlice& slice : sharded->shard_slices()) {
          slice.data.copy_(weights.at(slice.fqn).flatten().slice(0, slice.begin, slice.end));
        }
      }
      EXPECT_TRUE(net->bias.is_cpu());
      expect_same(weights_of(*sharded), weights);
      EXPECT_TRUE(torch::equal(net->forward(kX), eager->forward(kX)));
    });
  }
}

// Returns a module with one parameter of four numbers, on the meta device if `meta_parameters`, and a buffer of three
// numbers without memory.
std::shared_ptr<torch::nn::Module> make_meta_with_buffer(bool meta_parameters) {
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  auto net = std::make_shared<torch::nn::Module>("net");
  net->register_parameter("weight", meta_parameters ? torch::empty({4}, meta) : torch::ones({4}));
  net->register_buffer("running", torch::empty({3}, meta.dtype(torch::kDouble)));
  return net;
}

TEST(MetaBuffers, GetMemoryWhereTheModelComputes) {
  const auto net = make_meta_with_buffer(/*meta_parameters=*/true);
  const torch::Tensor handle = net->named_buffers()["running"];
  Options options = plain_options();
  options.device = torch::kCPU;
  fully_shard(*net, options);
  EXPECT_TRUE(handle.is_cpu());
  EXPECT_EQ(handle.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(handle.fill_(2), torch::full({3}, 2, torch::kDouble)));
}

TEST(MetaBuffers, OfRankZeroCannotBeSent) {
  const auto net = make_meta_with_buffer(/*meta_parameters=*/false);
  Options options = plain_options();
  options.sync_module_states = true;
  expect_error([&] { fully_shard(*net, options); }, {"buffer 'running'", "meta device on rank 0"});
}

// ---- policies

TEST(Policies, Size) {
  auto units = [](int64_t min_numel) {
    auto net = make_outer();
    Options options = plain_options();
    options.auto_wrap_policy = size_policy(min_numel);
    std::vector<std::string> names;
    for (const auto& unit : fully_shard(*net, options)->engine().units()) names.push_back(unit->name());
    return names;
  };
  // left has 9 elements, right 8, a pair 19.
  EXPECT_THAT(units(9), ElementsAre("a.left", "a", "b.left", "b", "root"));
  EXPECT_THAT(units(10), ElementsAre("a", "b", "root"));
  EXPECT_THAT(units(19), ElementsAre("a", "b", "root"));
  EXPECT_THAT(units(20), ElementsAre("root"));
  expect_error([] { size_policy(0); }, {"positive"});
}

TEST(Policies, SizePassesListsOver) {
  struct NestedImpl : torch::nn::Module {
    NestedImpl() {
      layers = register_module("layers", torch::nn::ModuleList(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)));
      chain = register_module("chain", torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)));
    }
    torch::nn::ModuleList layers;
    torch::nn::Sequential chain;
  };
  NestedImpl net;
  Options options = plain_options();
  options.auto_wrap_policy = size_policy(7);
  EXPECT_THAT(units_of(*fully_shard(net, options)),
              ElementsAre("chain: chain.0.weight chain.0.bias chain.1.weight chain.1.bias",
                          "root: layers.0.weight layers.0.bias layers.1.weight layers.1.bias"));
}

TEST(Policies, Names) {
  auto net = make_outer();
  Options options = plain_options();
  options.auto_wrap_policy = module_name_policy({"Pair"});
  auto sharded = fully_shard(*net, options);
  EXPECT_EQ(sharded->engine().units().size(), 3);
  EXPECT_EQ(module_class_name(*net), "Outer");
  EXPECT_EQ(module_class_name(*net->a->left), "Linear");
  expect_error([] { module_name_policy({}); }, {"no class names"});
}

TEST(Policies, AreAskedBottomUpWithTheRemainingParameters) {
  auto net = make_outer();
  std::vector<std::string> asked;
  Options options = plain_options();
  options.auto_wrap_policy = [&](const WrapCandidate& candidate) {
    asked.push_back(candidate.fqn + " " + std::to_string(candidate.unassigned_numel));
    return candidate.fqn == "a.left";
  };
  fully_shard(*net, options);
  EXPECT_THAT(asked, ElementsAre("a.left 9", "a.right 8", "a 10", "b.left 9", "b.right 8", "b 19"));
}

// ---- describing

TEST(DescribeUnits, TellsUnitsSizesPaddingAndOwners) {
  run_ranks(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear linear(4, 3);
    linear->bias.set_requires_grad(false);
    Options options;
    options.communicator = communicator;
    options.param_dtype = torch::kBFloat16;
    std::string text = fully_shard(*linear, options)->diagnostics().describe_units();
    EXPECT_THAT(text, HasSubstr("1 units over 2 ranks, use_orig_params true"));
    EXPECT_THAT(text, HasSubstr("unit 'root' FULL_SHARD (root)"));
    EXPECT_THAT(text, HasSubstr("trainable Float (gathered in BFloat16): 12 elements, padding 0, shard 6 x 2"));
    EXPECT_THAT(text, HasSubstr("weight [3, 4] at 0: rank 0 [0, 6), rank 1 [6, 12)"));
    EXPECT_THAT(text, HasSubstr("frozen Float (gathered in BFloat16): 3 elements, padding 1, shard 2 x 2"));
    EXPECT_THAT(text, HasSubstr("bias [3] at 0: rank 0 [0, 2), rank 1 [2, 3)"));
  });
}

TEST(DescribeUnits, FlatParametersHaveNamesOfTheirOwn) {
  auto net = make_outer();
  net->a->scale.set_requires_grad(false);
  Options options = plain_options();
  options.use_orig_params = false;
  options.auto_wrap_policy = module_class_policy<PairImpl>();
  auto sharded = fully_shard(*net, options);
  std::vector<std::string> names;
  for (const auto& [name, leaf] : sharded->named_parameters()) names.push_back(name);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.size(), 4);
  for (const auto& [name, leaf] : sharded->named_parameters()) {
    EXPECT_THAT(name, HasSubstr(".flat_param"));
    EXPECT_EQ(leaf.requires_grad(), name.find("a.") != 0 || leaf.numel() == 17) << name;
  }
}

TEST(DescribeUnits, OneUnitForAllDrawsAWarning) {
  struct Warnings : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  };
  auto warning_of = [](const WrapPolicy& policy, const std::shared_ptr<Communicator>& communicator) {
    Warnings warnings;
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    auto net = make_outer();
    Options options;
    options.communicator = communicator;
    options.auto_wrap_policy = policy;
    fully_shard(*net, options);
    return warnings.text;
  };
  EXPECT_THAT(warning_of({}, make_fake_communicator(0, 4)), HasSubstr("one unit holds the whole model"));
  EXPECT_EQ(warning_of(module_class_policy<PairImpl>(), make_fake_communicator(0, 4)), "");
}

}  // namespace
}  // namespace fsdp::frontend::fully_shard_test
