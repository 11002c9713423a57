// Tests that results of selected operators are kept and not computed again, and that gradients stay those of a plain
// call.
#include "fsdp/activation_checkpoint.h"
#include "recompute/testing/counted_block.h"
#include "support/training/sharding.h"

namespace fsdp::recompute::saved_operators_test {
namespace {

using testing::expect_error;
using testing::KernelCounter;
using testing::numbers;
using testing::same_bits;
using torch::Tensor;

Tensor leaf(at::IntArrayRef sizes) { return numbers(sizes).clone().set_requires_grad(true); }

CheckpointOptions keeping(const std::vector<std::string>& names) { return {.save_ops = names}; }

using Function = std::function<Tensor(const Tensor&, const Tensor&)>;

struct Outcome {
  Tensor result, gradient, other_gradient, drawn;
  int runs = 0;  // runs of the kernel of `counted`
};

Outcome run(const Function& function, const CheckpointOptions* options, const std::string& counted = "") {
  Outcome outcome;
  Tensor x = leaf({4, 6}), w = leaf({6, 6});
  torch::manual_seed(8);
  KernelCounter counter;
  Tensor y = options ? activation_checkpoint(*options, function, x, w) : function(x, w);
  outcome.result = y.detach().clone();
  y.pow(2).sum().backward();
  outcome.gradient = x.grad();
  outcome.other_gradient = w.grad();
  outcome.drawn = torch::rand({2});
  outcome.runs = counter.of(counted);
  return outcome;
}

void expect_equal(const Outcome& got, const Outcome& want) {
  EXPECT_TRUE(same_bits(got.result, want.result));
  EXPECT_TRUE(same_bits(got.gradient, want.gradient)) << got.gradient << "\nbut expected\n" << want.gradient;
  EXPECT_TRUE(same_bits(got.other_gradient, want.other_gradient));
  EXPECT_TRUE(same_bits(got.drawn, want.drawn));
}

// Returns the number of runs of `counted` in a plain call, with everything recomputed, and with the results of `kept`
// kept. The outcomes of all three must agree.
std::vector<int> runs(const Function& function, const std::string& counted, const std::vector<std::string>& kept) {
  CheckpointOptions all_recomputed, selective = keeping(kept);
  Outcome plain = run(function, nullptr, counted);
  Outcome recomputed = run(function, &all_recomputed, counted);
  Outcome selected = run(function, &selective, counted);
  expect_equal(recomputed, plain);
  expect_equal(selected, plain);
  return {plain.runs, recomputed.runs, selected.runs};
}

Tensor two_activations(const Tensor& x, const Tensor& w) {
  return torch::gelu(torch::softmax(torch::gelu(x.mm(w)), -1).mm(w));
}

TEST(SavedOperators, AreNotRunAgainAndOthersAre) {
  EXPECT_EQ(runs(two_activations, "aten::gelu", {"aten::gelu"}), (std::vector{2, 4, 2}));
  EXPECT_EQ(runs(two_activations, "aten::_softmax", {"aten::gelu"}), (std::vector{1, 2, 2}));
  EXPECT_EQ(runs(two_activations, "aten::_softmax", {"aten::_softmax", "aten::mm"}), (std::vector{1, 2, 1}));
  EXPECT_EQ(runs(two_activations, "aten::mm", {"aten::mm"}), (std::vector{6, 8, 6}));  // four of them in backward
}

// linear adds its bias in place to the result of mm.
TEST(SavedOperators, MayBeWrittenToInsideTheRegion) {
  const auto biased = [](const Tensor& x, const Tensor& w) {
    Tensor product = x.mm(w);
    Tensor before = product.exp();
    product.view({-1}).add_(1).mul_(3);
    return product.sin() * before;
  };
  EXPECT_EQ(runs(biased, "aten::mm", {"aten::mm"}), (std::vector{3, 4, 3}));
  runs(biased, "aten::exp", {"aten::exp", "aten::mm"});
  Tensor x = leaf({4, 6}), w = leaf({6, 6});
  Tensor loss = activation_checkpoint(keeping({"aten::mm"}), biased, x, w).sum();
  loss.backward({}, /*retain_graph=*/true);
  Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(same_bits(x.grad(), once * 2));
}

TEST(SavedOperators, MayBeRandomAndMoveTheGeneratorOn) {
  const auto random = [](const Tensor& x, const Tensor& w) {
    Tensor kept = std::get<0>(at::native_dropout(x, 0.5, true));
    return torch::dropout(kept, 0.5, true).mm(w);
  };
  EXPECT_EQ(runs(random, "aten::native_dropout", {"aten::native_dropout"}), (std::vector{1, 2, 1}));
}

TEST(SavedOperators, MayReturnLists) {
  const auto foreach = [](const Tensor& x, const Tensor& w) { return at::_foreach_mul({x, x.sin()}, {x, x})[1].mm(w); };
  EXPECT_EQ(runs(foreach, "aten::_foreach_mul", {"aten::_foreach_mul.List"}), (std::vector{1, 2, 1}));
}

TEST(SavedOperators, NestInOtherRegions) {
  CheckpointOptions options = keeping({"aten::gelu"});
  const auto nested = [&](const Tensor& x, const Tensor& w) {
    return activation_checkpoint(options, two_activations, torch::gelu(x), w);
  };
  Outcome plain = run([](const Tensor& x, const Tensor& w) { return two_activations(torch::gelu(x), w); }, nullptr);
  Outcome got = run(nested, &options, "aten::gelu");
  expect_equal(got, plain);
  EXPECT_EQ(got.runs, 3);
}

TEST(SavedOperators, ThatCannotBeKeptAreRefused) {
  const auto refused = [](const char* name, const char* reason) {
    expect_error([&] { SavedOperators({name}); }, {name, "cannot be kept", reason});
  };
  refused("aten::nothing_of_the_kind", "there is no operator");
  refused("aten::linear", "decomposes");
  refused("aten::transpose.int", "returns a view");
  refused("aten::add_", "writes to its arguments");
  EXPECT_EQ(SavedOperators({}).selection(), nullptr);
}

TEST(SavedOperators, WritingToAKeptResultAfterwardsIsAnError) {
  Tensor x = leaf({4, 6}), w = leaf({6, 6});
  for (bool through_alias : {false, true}) {
    const auto function = [&](const Tensor& in, const Tensor& weight) {
      Tensor product = in.mm(weight);
      return std::tuple(through_alias ? at::_unsafe_view(product, {24}) : product, product * product);
    };
    auto [product, square] = activation_checkpoint(keeping({"aten::mm"}), function, x, w);
    product.detach().add_(1);
    expect_error([&, square = square] { square.sum().backward(); }, {"was written to after the function ended"});
  }
}

TEST(SavedOperators, CalledInAnotherOrderAreAnError) {
  Tensor x = leaf({4, 6}), w = leaf({6, 6});
  int calls = 0;
  const auto more = [&](const Tensor& in, const Tensor& weight) {
    return ++calls == 1 ? in.mm(weight) : in.mm(weight).mm(weight);
  };
  const auto fewer = [&](const Tensor& in, const Tensor& weight) {
    return ++calls == 1 ? in.mm(weight).mm(weight) : in.mm(weight);
  };
  const auto other = [&](const Tensor& in, const Tensor& weight) {
    return ++calls == 1 ? torch::gelu(in) + weight.sum() : in.mm(weight);
  };
  const auto expect_differs = [&](const Function& function, const char* part) {
    calls = 0;
    Tensor y = activation_checkpoint(keeping({"aten::mm", "aten::gelu"}), function, x, w);
    expect_error([&] { y.sum().backward(); }, {"did not do the same", part});
  };
  expect_differs(more, "its call 1 to an operator");
  expect_differs(fewer, "2 times in forward, and 1");
  expect_differs(other, "is aten::mm, but was aten::gelu");
}

}  // namespace
}  // namespace fsdp::recompute::saved_operators_test
