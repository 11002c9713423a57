// Tests which calls of fully_shard are refused.
#include "fsdp/fully_shard.h"

#include "engine/engine.h"
#include "frontend/testing/outer_net.h"
#include "fsdp/fsdp.h"
#include "support/training/sharding.h"

namespace fsdp::frontend::fully_shard_errors_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::expect_same;
using ::testing::HasSubstr;
using testing::make_outer;
using testing::outer_input;
using testing::plain_options;
using testing::units_of;
using testing::weights_of;

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
  EXPECT_EQ(net->forward(outer_input()).scalar_type(), torch::kFloat);
  net->forward(outer_input()).sum().backward();
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

}  // namespace
}  // namespace fsdp::frontend::fully_shard_errors_test
