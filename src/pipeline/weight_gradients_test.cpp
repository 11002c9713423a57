// Tests that gradients of weights that are computed apart equal those of backward to the bit.
#include "pipeline/weight_gradients.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "fsdp/activation_checkpoint.h"
#include "fsdp/fully_shard.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::weight_gradients_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
namespace functional = torch::nn::functional;  // of torch::nn::Linear: addmm or matmul by a transposed weight

torch::Tensor values(at::IntArrayRef sizes, double phase) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes)) * (0.37 + phase)).view(sizes);
}

// The leaves of a computation.
struct Leaves {
  torch::Tensor input = values({3, 5, 7}, 0.1).requires_grad_();
  torch::Tensor weight = values({7, 7}, 0.2).requires_grad_();  // of linear or addmm
  torch::Tensor bias = values({7}, 0.3).requires_grad_();
  torch::Tensor other = values({7, 7}, 0.4).requires_grad_();
  std::vector<torch::Tensor> all() const { return {input, weight, bias, other}; }
};

using Compute = std::function<torch::Tensor(Leaves& leaves)>;

struct Case {
  const char* name;
  Compute compute;
  size_t left;  // products whose gradients wait
};

torch::Tensor rows(const torch::Tensor& x) { return x.view({-1, x.size(-1)}); }

std::vector<Case> cases() {
  return {
      {"linear", [](Leaves& l) { return torch::linear(l.input, l.weight); }, 1},
      {"linear_with_bias", [](Leaves& l) { return torch::linear(l.input, l.weight, l.bias); }, 1},
      {"linear_of_matrix", [](Leaves& l) { return torch::linear(rows(l.input), l.weight, l.bias); }, 1},
      {"linear_of_four_dimensions", [](Leaves& l) { return torch::linear(l.input.view({3, 1, 5, 7}), l.weight); }, 1},
      {"linear_by_a_transposed_weight", [](Leaves& l) { return torch::linear(l.input, l.weight.t(), l.bias); }, 1},
      {"linear_by_a_part", [](Leaves& l) { return torch::linear(l.input, l.weight.slice(0, 2, 5)); }, 0},
      {"linear_by_a_transposed_part", [](Leaves& l) { return torch::linear(l.input, l.weight.slice(1, 2, 5).t()); }, 0},
      {"addmm", [](Leaves& l) { return torch::addmm(l.bias, rows(l.input), l.weight); }, 1},
      {"addmm_by_a_transposed_weight", [](Leaves& l) { return torch::addmm(l.bias, rows(l.input), l.weight.t()); }, 1},
      {"mm", [](Leaves& l) { return torch::mm(rows(l.input), l.weight); }, 1},
      {"mm_by_a_transposed_weight", [](Leaves& l) { return torch::mm(rows(l.input), l.weight.t()); }, 1},
      {"matmul", [](Leaves& l) { return torch::matmul(l.input, l.weight); }, 1},
      {"matmul_by_a_transposed_weight", [](Leaves& l) { return torch::matmul(l.input, l.weight.t()); }, 1},
      {"matmul_of_matrices", [](Leaves& l) { return torch::matmul(rows(l.input), l.weight); }, 1},
      {"matmul_of_a_vector", [](Leaves& l) { return torch::matmul(l.input[0][0], l.weight); }, 0},
      {"matmul_without_a_weight", [](Leaves& l) { return torch::matmul(l.input, l.input.transpose(1, 2)); }, 0},
      {"functional_linear", [](Leaves& l) { return functional::linear(l.input, l.weight, l.bias); }, 1},
      {"functional_linear_of_matrix", [](Leaves& l) { return functional::linear(rows(l.input), l.weight, l.bias); }, 1},
      {"layers",
       [](Leaves& l) { return torch::linear(torch::tanh(torch::linear(l.input, l.weight, l.bias)), l.other); }, 2},
      {"one_weight_three_times",
       [](Leaves& l) {
         torch::Tensor x = l.input;
         for (int i = 0; i < 3; ++i) x = torch::tanh(torch::linear(x, l.weight, l.bias)) + x;
         return x;
       },
       3},
      {"branches",
       [](Leaves& l) {
         return torch::linear(l.input, l.weight) * torch::sigmoid(torch::linear(l.input, l.other, l.bias));
       },
       2},
      {"input_without_gradient", [](Leaves& l) { return torch::linear(l.input.detach(), l.weight, l.bias); }, 1},
      {"frozen_weight", [](Leaves& l) { return torch::linear(torch::linear(l.input, l.other.detach()), l.weight); }, 1},
      {"weight_that_is_no_leaf", [](Leaves& l) { return torch::linear(l.input, l.weight * 2, l.bias); }, 0},
      {"scaled_addmm", [](Leaves& l) { return torch::addmm(l.bias, rows(l.input), l.weight, 1, 0.5); }, 0},
      {"input_with_gaps", [](Leaves& l) { return torch::linear(l.input.transpose(0, 1), l.weight, l.bias); }, 0},
      {"recomputed",
       [](Leaves& l) {
         const auto first = [&l](const torch::Tensor& x) { return torch::tanh(torch::linear(x, l.weight, l.bias)); };
         const auto second = [&l](const torch::Tensor& x) { return torch::tanh(torch::linear(x, l.other)); };
         return activation_checkpoint(second, activation_checkpoint(first, l.input));
       },
       2},
  };
}

class Apart : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, Apart, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

void expect_same_gradients(const Leaves& got, const Leaves& want) {
  for (size_t i = 0; i < got.all().size(); ++i) {
    const torch::Tensor gradient = got.all()[i].grad(), expected = want.all()[i].grad();
    ASSERT_EQ(gradient.defined(), expected.defined()) << i;
    if (expected.defined()) {
      EXPECT_TRUE(torch::equal(gradient, expected)) << i << "\n" << gradient - expected;
    }
  }
}

// Two micro-batches, whose passes for weights come after both for inputs.
TEST_P(Apart, EqualsBackwardToTheBit) {
  Leaves plain, apart;
  std::vector<std::shared_ptr<WeightGradients>> left;
  for (const double scale : {1.0, 0.3}) {
    const auto loss_of = [scale](const torch::Tensor& output) { return (output * output).sum() * scale; };
    loss_of(GetParam().compute(plain)).backward();
    left.push_back(std::make_shared<WeightGradients>());
    WeightGradients::Recording recording(*left.back());
    loss_of(GetParam().compute(apart)).backward();
  }
  for (const auto& one : left) {
    EXPECT_EQ(one->size(), GetParam().left);
    one->accumulate();
    EXPECT_EQ(one->size(), 0u);
  }
  expect_same_gradients(apart, plain);
}

// A sharded weight is gathered for the transpose, too.
TEST(WeightGradients, OfShardedWeightsWait) {
  for (const bool transposes : {false, true}) {
    testing::run_ranks(2, [&](const std::shared_ptr<Communicator>& world) {
      torch::nn::Linear layer(torch::nn::LinearOptions(7, 7).bias(false));
      Options options;
      options.communicator = world;
      const auto sharded = fully_shard(*layer, options);
      const torch::Tensor x = values({3, 7}, 0.1);
      const auto left = std::make_shared<WeightGradients>();
      {
        WeightGradients::Recording recording(*left);
        torch::linear(x, transposes ? layer->weight.t() : layer->weight).sum().backward();
      }
      EXPECT_EQ(left->size(), 1u) << transposes;
      left->accumulate();
      const torch::Tensor rows = x.sum(0).expand({7, 7});
      sharded->update_whole_parameters([&](const WholeParameter& weight) {
        EXPECT_TRUE(weight.gradient.allclose(transposes ? rows.t() : rows)) << transposes;
      });
    });
  }
}

TEST(WeightGradients, NothingIsLeftWithoutGradients) {
  Leaves leaves;
  const auto left = std::make_shared<WeightGradients>();
  WeightGradients::Recording recording(*left);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(torch::linear(leaves.input, leaves.weight).requires_grad());
}

TEST(WeightGradients, ChangedWeightsAndSecondBackwardsAreErrors) {
  Leaves leaves;
  const auto left = std::make_shared<WeightGradients>();
  WeightGradients::Recording recording(*left);
  torch::Tensor output = torch::linear(leaves.input, leaves.weight).sum();
  {
    const torch::NoGradGuard no_grad;
    leaves.weight.mul_(2);
  }
  EXPECT_THAT(error_of([&] { output.backward(); }), HasSubstr("modified by an inplace operation"));
  output = torch::linear(leaves.input, leaves.weight).sum();
  EXPECT_THAT(error_of([&] { output.backward({}, true, /*create_graph=*/true); }),
              HasSubstr("double backward (create_graph) is not supported"));
  output = torch::linear(leaves.input, leaves.weight).sum();
  output.backward();
  EXPECT_THAT(error_of([&] { output.backward(); }), HasSubstr("second time"));
}

}  // namespace
}  // namespace fsdp::pipeline::weight_gradients_test
