// Tests operators that LibTorch decomposes depending on which tensors require gradients: in a region that keeps
// results, they must decompose in the first run as in recomputation.
#include "fsdp/activation_checkpoint.h"
#include "recompute/testing/counted_block.h"
#include "support/training/sharding.h"

namespace fsdp::recompute::decompositions_test {
namespace {

using testing::CountingAllocator;
using testing::expect_error;
using testing::KernelCounter;
using testing::LiveBytes;
using testing::numbers;
using testing::same_bits;
using torch::Tensor;

using TwoTensors = std::function<Tensor(const Tensor&, const Tensor&)>;

// Returns a batch that matmul can fold into a matrix only by copying it.
Tensor not_contiguous(const Tensor& x) { return x.view({2, 2, 6}).transpose(0, 1); }

struct Outcome {
  Tensor result, gradient, weight_gradient;
  std::map<std::string, int> kernels;
};

Outcome run_once(const TwoTensors& function, const CheckpointOptions* options, bool frozen,
                 const std::vector<std::string>& counted) {
  Tensor x = numbers({4, 6}).clone().set_requires_grad(true), w = numbers({6, 6}).clone().set_requires_grad(!frozen);
  KernelCounter counter;
  Tensor y = options ? activation_checkpoint(*options, function, x, w) : function(x, w);
  Outcome outcome;
  outcome.result = y.detach().clone();
  y.pow(2).sum().backward();
  outcome.gradient = x.grad();
  outcome.weight_gradient = w.grad();
  for (const std::string& name : counted) outcome.kernels[name] = counter.of(name);
  return outcome;
}

// Expects the results, the gradients and the number of runs of the kept operators to equal those of a plain call.
void expect_nothing_runs_again(const TwoTensors& function, const std::vector<std::string>& kept, bool frozen = false) {
  CheckpointOptions options{.save_ops = kept};
  Outcome plain = run_once(function, nullptr, frozen, kept), selected = run_once(function, &options, frozen, kept);
  EXPECT_TRUE(same_bits(selected.result, plain.result));
  EXPECT_TRUE(same_bits(selected.gradient, plain.gradient));
  EXPECT_EQ(selected.weight_gradient.defined(), plain.weight_gradient.defined());
  EXPECT_TRUE(frozen || same_bits(selected.weight_gradient, plain.weight_gradient));
  EXPECT_EQ(selected.kernels, plain.kernels);
}

const std::vector<std::string> kProducts = {"aten::mm", "aten::bmm", "aten::addmm"};

TEST(Decompositions, OfProductsWithDerivedWeights) {
  const auto derived = [](const Tensor& x, const Tensor& w) { return torch::linear(not_contiguous(x), w * 2); };
  const auto with_bias = [](const Tensor& x, const Tensor& w) {
    return torch::linear(not_contiguous(x), w * 2, w.sum(0));
  };
  const auto adapter = [](const Tensor& x, const Tensor& w) {
    return torch::linear(not_contiguous(x), w.detach() + w.narrow(1, 0, 2).mm(w.narrow(0, 0, 2)));
  };
  for (bool frozen : {false, true}) {
    expect_nothing_runs_again(derived, kProducts, frozen);
    expect_nothing_runs_again(with_bias, kProducts, frozen);
    expect_nothing_runs_again(adapter, kProducts, frozen);
  }
}

TEST(Decompositions, OfProductsOfActivations) {
  const auto both = [](const Tensor& x, const Tensor& w) { return not_contiguous(x.sin()).matmul(x.mm(w).t()); };
  const auto smaller_first = [](const Tensor& x, const Tensor& w) {
    return x.mm(w).matmul(not_contiguous(x.cos()).transpose(1, 2));
  };
  const auto without_gradient = [](const Tensor& x, const Tensor& w) {
    torch::NoGradGuard no_grad;
    Tensor constant = x.mm(w);
    torch::AutoGradMode gradients(true);
    return not_contiguous(x.sin()).matmul(constant.t()) + not_contiguous(x).matmul(x.detach().t());
  };
  for (bool frozen : {false, true}) {
    expect_nothing_runs_again(both, kProducts, frozen);
    expect_nothing_runs_again(smaller_first, kProducts, frozen);
    expect_nothing_runs_again(without_gradient, kProducts, frozen);
  }
}

// The flash kernel does not accept a mask that requires a gradient.
TEST(Decompositions, OfAttentionWithADerivedMask) {
  const auto attention = [](const Tensor& x, const Tensor& w) {
    Tensor heads = x.view({1, 1, 4, 6});
    return at::scaled_dot_product_attention(heads, heads * 2, heads, w.narrow(0, 0, 4).narrow(1, 0, 4) + 1);
  };
  const std::vector<std::string> kernels = {"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::bmm"};
  expect_nothing_runs_again(attention, kernels);
  expect_nothing_runs_again(attention, kernels, /*frozen=*/true);
}

TEST(Decompositions, InRegionsOfRegions) {
  const CheckpointOptions inner{.save_ops = {"aten::bmm", "aten::gelu"}}, all_again;
  const auto derived = [](const Tensor& x, const Tensor& w) {
    return torch::gelu(torch::linear(not_contiguous(x), w * 2)).reshape({4, 6});
  };
  for (const CheckpointOptions* options : {&inner, &all_again}) {
    const auto nested = [&](const Tensor& x, const Tensor& w) {
      Tensor h = activation_checkpoint(*options, derived, x.sin(), w);
      return derived(h, h.mm(w).t().mm(h));
    };
    const CheckpointOptions outer{.save_ops = kProducts};
    const auto plain = [&](const Tensor& x, const Tensor& w) {
      Tensor h = derived(x.sin(), w);
      return derived(h, h.mm(w).t().mm(h));
    };
    Outcome want = run_once(plain, nullptr, false, {}), got = run_once(nested, &outer, false, {});
    // The first run of a region without kept results has no gradients, so its products may differ.
    EXPECT_TRUE(options == &all_again || same_bits(got.result, want.result));
    EXPECT_TRUE(torch::allclose(got.result, want.result, 1e-4, 1e-4));
    // Several regions contribute to the gradients.
    EXPECT_TRUE(torch::allclose(got.gradient, want.gradient, 1e-4, 1e-4));
    EXPECT_TRUE(torch::allclose(got.weight_gradient, want.weight_gradient, 1e-4, 1e-4));
  }
}

// Writes in place to results of operators and to views of them.
TEST(Decompositions, MayBeWrittenToInPlace) {
  const auto written = [](const Tensor& x, const Tensor& w) {
    Tensor h = torch::linear(not_contiguous(x), w * 2).sin();
    h.select(0, 1).mul_(x.narrow(0, 0, 2).sum()).add_(1);
    h.mul_(h.detach().cos());
    return h.reshape({-1, 6}).mul(w.sum());
  };
  expect_nothing_runs_again(written, kProducts);
  expect_nothing_runs_again(written, {"aten::sin"});
}

TEST(Decompositions, TheInputsOfARegionStayAsTheyAre) {
  Tensor x = numbers({4, 6}).clone().set_requires_grad(true);
  const CheckpointOptions options{.save_ops = {"aten::gelu"}};
  const auto write = [](const Tensor& in) { return torch::gelu(in).mul_(2) + in.mul_(1); };
  expect_error([&] { activation_checkpoint(options, write, x); }, {"leaf Variable", "in-place"});
  EXPECT_TRUE(same_bits(x.detach(), numbers({4, 6})));
}

constexpr int64_t kSide = 64, kBytes = kSide * kSide * 4;

struct SquareNode : torch::autograd::Function<SquareNode> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    Tensor square = x * x;
    context->save_for_backward({x, square});
    return square;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2 * context->get_saved_variables()[0]};
  }
};

Tensor long_chain(Tensor x) {
  for (int i = 0; i < 8; ++i) {
    x = torch::gelu(x) * x.sigmoid();
    x.select(0, 0).mul_(2);
    x = SquareNode::apply(x.clone().exp_()) + x;
  }
  return x;
}

// Returns the peak of live bytes in a first run, with `options` or, if null, with the graph of a plain call.
int64_t peak_of_first_run(const CheckpointOptions* options) {
  CountingAllocator allocator;
  Tensor x = torch::ones({kSide, kSide}, torch::TensorOptions().requires_grad(true));
  LiveBytes bytes;
  Tensor y = options ? activation_checkpoint(*options, long_chain, x) : long_chain(x);
  return bytes.peak();
}

TEST(Decompositions, TheFirstRunHoldsNoActivationsForItsGraph) {
  const CheckpointOptions nothing{.preserve_rng_state = false},
      kept{.preserve_rng_state = false, .save_ops = {"aten::mm"}};
  const int64_t without_graph = peak_of_first_run(&nothing), with_graph = peak_of_first_run(nullptr);
  EXPECT_GT(with_graph, without_graph + 16 * kBytes);
  EXPECT_LT(peak_of_first_run(&kept), without_graph + 2 * kBytes);
}

}  // namespace
}  // namespace fsdp::recompute::decompositions_test
