// Tests that a checkpointed function gives the results and gradients of a plain call, for all kinds of inputs and
// results.
#include "fsdp/activation_checkpoint.h"

#include "recompute/testing/counted_block.h"
#include "support/training/sharding.h"

namespace fsdp::recompute::activation_checkpoint_test {
namespace {

using testing::CountedBlock;
using testing::expect_error;
using testing::gradients_of;
using testing::make_block;
using testing::numbers;
using testing::same_bits;
using torch::Tensor;

Tensor leaf(at::IntArrayRef sizes) { return numbers(sizes).clone().set_requires_grad(true); }

void expect_equal(const Tensor& got, const Tensor& want) {
  EXPECT_TRUE(same_bits(got, want)) << got << "\nbut expected\n" << want;
}

TEST(ActivationCheckpoint, EqualsAPlainCallAndRunsOnceMore) {
  for (bool input_requires_grad : {true, false}) {
    Tensor x = numbers({5, 7}).clone().set_requires_grad(input_requires_grad);
    CountedBlock plain = make_block(7), recomputed = make_block(7);
    Tensor want = plain(x).pow(2).sum();
    want.backward();
    Tensor input_gradient = x.grad().defined() ? x.grad().clone() : x.grad();
    x.mutable_grad().reset();
    Tensor got = activation_checkpoint([&](const Tensor& in) { return recomputed(in); }, x).pow(2).sum();
    EXPECT_EQ(recomputed->calls, 1);
    got.backward();
    EXPECT_EQ(recomputed->calls, 2);
    expect_equal(got.detach(), want.detach());
    expect_equal(x.grad(), input_gradient);
    testing::expect_same(gradients_of(*recomputed), gradients_of(*plain));
  }
}

// Also in nested regions, for each backward, and after a function that throws.
TEST(ActivationCheckpoint, AFunctionKnowsThatItIsRecomputed) {
  int first = 0, again = 0;
  const auto function = [&](const Tensor& in) {
    ++(is_recomputing() ? again : first);
    return in.sin();
  };
  const auto nested = [&](const Tensor& in) { return activation_checkpoint(function, function(in)); };
  const Tensor loss = activation_checkpoint(nested, leaf({3})).sum();
  EXPECT_EQ(first, 2);
  EXPECT_EQ(again, 0);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(again, 3);  // the inner function runs again for the nested backward
  EXPECT_FALSE(is_recomputing());
  loss.backward();
  EXPECT_EQ(first, 2);
  EXPECT_EQ(again, 6);
  const auto fails = [](const Tensor& in) {
    TORCH_CHECK(!is_recomputing(), "in recomputation");
    return in.sin();
  };
  expect_error([&] { activation_checkpoint(fails, leaf({3})).sum().backward(); }, {"in recomputation"});
  EXPECT_FALSE(is_recomputing());
}

using Several = std::tuple<Tensor, Tensor, Tensor, std::vector<Tensor>>;

// Uses all kinds of inputs: tracked, integer, undefined, optional, list and other.
Several several(const Tensor& x, const Tensor& ids, const Tensor& undefined, const std::optional<Tensor>& optional,
                const std::vector<Tensor>& list, const std::string& text) {
  EXPECT_FALSE(undefined.defined());
  EXPECT_EQ(text, "text");
  return {x.index_select(0, ids) * *optional, ids + 1, Tensor(), {torch::sin(list.at(0)), torch::exp(x), list.at(1)}};
}

TEST(ActivationCheckpoint, TakesAndReturnsAllKindsOfTensors) {
  Tensor ids = torch::tensor({2, 0, 2});
  std::vector<std::vector<Tensor>> gradients;
  for (bool recompute : {false, true}) {
    Tensor x = leaf({3, 2}), scale = leaf({2}), part = leaf({4}), constant = torch::ones({2});
    auto arguments = std::tuple(x, ids, Tensor(), std::optional<Tensor>(scale), std::vector<Tensor>{part, constant},
                                std::string("text"));
    auto [picked, next, nothing, list] = std::apply(
        [&](const auto&... each) { return recompute ? activation_checkpoint(several, each...) : several(each...); },
        arguments);
    expect_equal(next, ids + 1);
    EXPECT_FALSE(next.requires_grad());
    EXPECT_FALSE(nothing.defined());
    ASSERT_EQ(list.size(), 3u);
    EXPECT_TRUE(torch::equal(list[2].detach(), constant));
    (picked.pow(2).sum() + list[0].sum()).backward();  // list[1] and list[2] stay unused
    gradients.push_back({x.grad(), scale.grad(), part.grad()});
  }
  for (size_t i = 0; i < 3; ++i) expect_equal(gradients[1][i], gradients[0][i]);
}

TEST(ActivationCheckpoint, ResultsThatNeedNoGradientBringNone) {
  Tensor x = leaf({3});
  auto [constant, detached] =
      activation_checkpoint([](const Tensor& in) { return std::tuple(torch::ones({2}), in.detach() * 2); }, x);
  (constant.sum() + detached.sum() + x.sum()).backward();
  expect_equal(x.grad(), torch::ones({3}));
}

TEST(ActivationCheckpoint, ResultsMayBeInputsViewsAndParameters) {
  Tensor x = leaf({2, 3}), weight = leaf({3});
  auto [same, view, parameter] =
      activation_checkpoint([&](const Tensor& in) { return std::tuple(in, in.t(), weight); }, x);
  (same.sum() + (view * 3).sum() + (parameter * 5).sum()).backward();
  expect_equal(x.grad(), torch::full({2, 3}, 4.0));
  expect_equal(weight.grad(), torch::full({3}, 5.0));
  EXPECT_TRUE(x.is_leaf() && weight.is_leaf());
}

TEST(ActivationCheckpoint, NestsAndUsesAModuleSeveralTimes) {
  CountedBlock plain = make_block(3), recomputed = make_block(3);
  Tensor x = numbers({4, 3});
  plain(plain(plain(x))).pow(2).sum().backward();
  const auto once = [&](const Tensor& in) { return recomputed(in); };
  const auto twice = [&](const Tensor& in) { return activation_checkpoint(once, activation_checkpoint(once, in)); };
  activation_checkpoint(once, activation_checkpoint(twice, x)).pow(2).sum().backward();
  testing::expect_same(gradients_of(*recomputed), gradients_of(*plain));
  EXPECT_EQ(recomputed->calls, 3 + 1 + 2 * 2);
}

TEST(ActivationCheckpoint, IsAPlainCallWithoutGradients) {
  CountedBlock block = make_block(3);
  Tensor x = numbers({4, 3});
  {
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(activation_checkpoint_module({}, block, x).requires_grad());
  }
  {
    torch::InferenceMode inference;
    EXPECT_FALSE(activation_checkpoint_module({}, block, x).requires_grad());
  }
  for (Tensor& parameter : block->parameters()) parameter.set_requires_grad(false);
  EXPECT_FALSE(activation_checkpoint_module({}, block, x).requires_grad());
  EXPECT_EQ(block->calls, 3);
  EXPECT_TRUE(activation_checkpoint_module({}, block, leaf({4, 3})).requires_grad());
}

TEST(ActivationCheckpoint, ErrorsOfTheFunctionReachTheCaller) {
  int calls = 0, fails_at = 1;
  const auto function = [&](const Tensor& in) {
    TORCH_CHECK(++calls != fails_at, "call ", calls, " fails");
    return torch::dropout(in, 0.5, true);
  };
  Tensor x = leaf({3});
  expect_error([&] { activation_checkpoint(function, x); }, {"call 1 fails"});
  EXPECT_TRUE(torch::GradMode::is_enabled());
  fails_at = 3;
  Tensor y = activation_checkpoint(function, x);
  torch::manual_seed(3);
  Tensor expected = torch::rand({2});
  torch::manual_seed(3);
  expect_error([&] { y.sum().backward(); }, {"call 3 fails"});
  expect_equal(torch::rand({2}), expected);  // the generator is as it was before the recomputation
  activation_checkpoint(function, x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(ActivationCheckpoint, ARecomputationThatDiffersIsAnError) {
  int calls = 0;
  Tensor x = leaf({2, 3});
  const auto expect_differs = [&](const TensorsFunction& function, std::initializer_list<const char*> parts) {
    calls = 0;
    std::vector<Tensor> results = activation_checkpoint_tensors({}, function, {x});
    expect_error([&] { results.at(0).sum().backward(); }, parts);
  };
  expect_differs([&](const auto& in) { return ++calls == 1 ? std::vector{in[0] * 2} : std::vector{in[0], in[0]}; },
                 {"did not do the same", "1 tensor(s) in forward, and 2"});
  expect_differs([&](const auto& in) { return std::vector{++calls == 1 ? in[0] * 2 : in[0].t() * 2}; },
                 {"result 0 was Float [2, 3]", "is Float [3, 2]"});
  expect_differs([&](const auto& in) { return std::vector{++calls == 1 ? in[0] * 2 : in[0].to(torch::kDouble)}; },
                 {"result 0 was Float [2, 3]", "is Double [2, 3]"});
  expect_differs([&](const auto& in) { return std::vector{in[0] * 2, ++calls == 1 ? Tensor() : in[0]}; },
                 {"result 1 was undefined"});
}

TEST(ActivationCheckpoint, WritingToAnInputIsAnError) {
  Tensor x = leaf({3}) * 1;
  Tensor y = activation_checkpoint([](const Tensor& in) { return in.detach().mul_(2) * in; }, x);
  expect_error([&] { y.sum().backward(); }, {"modified by an inplace operation"});
}

TEST(ActivationCheckpoint, DoubleBackwardAndAutogradGradAreRefused) {
  CountedBlock block = make_block(3);
  Tensor x = leaf({4, 3});
  const auto loss = [&] { return activation_checkpoint_module({}, block, x).sum(); };
  expect_error([&] { loss().backward({}, std::nullopt, /*create_graph=*/true); }, {"double backward", "create_graph"});
  expect_error([&] { torch::autograd::grad({loss()}, {x}); }, {"torch::autograd::grad", "checkpointed function"});
  expect_error([&] { loss().backward({}, std::nullopt, false, std::vector<Tensor>{x}); }, {"list of inputs"});
  expect_error([&] { torch::autograd::grad({loss()}, block->parameters()); }, {"not have been used in the graph"});
  EXPECT_FALSE(x.grad().defined() || block->linear->weight.grad().defined());
  loss().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(ActivationCheckpoint, SecondBackwardNeedsTheGraph) {
  CountedBlock block = make_block(3);
  Tensor x = leaf({4, 3});
  Tensor loss = activation_checkpoint_module({}, block, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  Tensor once = x.grad().clone();
  loss.backward();
  expect_equal(x.grad(), once * 2);
  EXPECT_EQ(block->calls, 3);
  expect_error([&] { loss.backward(); }, {"backward through the graph a second time"});
  Tensor without_inputs = activation_checkpoint([&] { return block(x); }).sum();
  without_inputs.backward();
  expect_error([&] { without_inputs.backward(); }, {"backward through the graph a second time"});
}

TEST(ActivationCheckpoint, PoliciesChooseModules) {
  const auto chosen = [](const CheckpointPolicy& policy) {
    std::vector<int> indices;
    for (int i = 0; i < 6; ++i) {
      if (policy.applies_to(i)) indices.push_back(i);
    }
    return indices;
  };
  EXPECT_EQ(chosen({}), std::vector<int>());
  EXPECT_EQ(chosen(CheckpointPolicy::full()), (std::vector{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(chosen(CheckpointPolicy::every(4)), (std::vector{0, 4}));
  EXPECT_EQ(chosen(CheckpointPolicy::selected_operators({"aten::mm"})), (std::vector{0, 1, 2, 3, 4, 5}));
  expect_error([] { CheckpointPolicy::every(0); }, {"k must be at least 1"});
}

TEST(ActivationCheckpoint, CheckpointedCallsItsModule) {
  torch::nn::ModuleDict parent;
  Checkpointed<CountedBlock> block(make_block(3));
  parent->update({{"block", block.module().ptr()}});
  block(numbers({4, 3})).sum().backward();
  EXPECT_EQ(block->calls, 2);
  EXPECT_EQ(parent->named_parameters().keys(), (std::vector<std::string>{"block.linear.weight", "block.linear.bias"}));
}

}  // namespace
}  // namespace fsdp::recompute::activation_checkpoint_test
