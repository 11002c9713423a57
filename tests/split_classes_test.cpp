// Tests that the loss over classes that are split over ranks is that of all classes.
#include "fsdp/tensor_parallel.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::split_classes_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using ::testing::HasSubstr;

using Ranks = std::shared_ptr<Communicator>;

constexpr int64_t kClasses = 11;

// This rank's part of the classes, of which the first ranks have one more.
torch::Tensor part_of(const torch::Tensor& whole, const Ranks& group) {
  const int64_t each = kClasses / group->size(), more = kClasses % group->size(), rank = group->rank();
  return whole.narrow(-1, rank * each + std::min(rank, more), each + (rank < more ? 1 : 0));
}

torch::Tensor reference(const torch::Tensor& logits, const torch::Tensor& labels) {
  const torch::Tensor wide = logits.scalar_type() == torch::kDouble ? logits : logits.to(torch::kFloat);
  return torch::nn::functional::cross_entropy(wide.flatten(0, -2), labels.flatten(),
                                              torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-100));
}

void expect_loss_of_all(at::ScalarType dtype, double tolerance, const torch::Tensor& labels, double size = 1) {
  const torch::Tensor whole = (numbers({2, 4, kClasses}) * size).to(dtype).requires_grad_();
  const torch::Tensor expected = reference(whole, labels);
  (expected * 3).backward();
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Ranks group) {
      const SplitClasses classes(group, kClasses);
      const torch::Tensor mine = part_of(whole.detach(), group).clone().requires_grad_();
      const torch::Tensor loss = classes.mean_cross_entropy(mine, labels);
      EXPECT_EQ(loss.scalar_type(), expected.scalar_type());
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), tolerance * (1 + size)) << ranks;
      (loss * 3).backward();
      EXPECT_TRUE(mine.grad().allclose(part_of(whole.grad(), group), tolerance, tolerance)) << ranks;
      EXPECT_TRUE(classes.gather(mine.detach()).equal(whole.detach()));
    });
  }
}

const torch::Tensor kLabels = torch::tensor({{0, 10, -100, 5}, {6, -100, 3, 7}});

TEST(SplitClasses, TheLossIsThatOfAllClasses) {
  expect_loss_of_all(torch::kFloat64, 1e-14, kLabels);
  expect_loss_of_all(torch::kFloat32, 1e-6, kLabels);
  expect_loss_of_all(torch::kBFloat16, 1e-3, kLabels);
}

TEST(SplitClasses, LargeLogitsDoNotOverflow) { expect_loss_of_all(torch::kFloat64, 1e-13, kLabels, 2000); }

TEST(SplitClasses, GatheredLogitsPassTheirGradientBack) {
  run_ranks(3, [](Ranks group) {
    const SplitClasses classes(group, kClasses);
    const torch::Tensor whole = numbers({2, kClasses}), factors = numbers({2, kClasses}).cos();
    const torch::Tensor mine = part_of(whole, group).clone().requires_grad_();
    (classes.gather(mine) * factors).sum().backward();
    EXPECT_TRUE(mine.grad().equal(part_of(factors, group)));
  });
}

TEST(SplitClasses, WithoutLabelsTheLossIsNotANumber) {
  run_ranks(2, [](Ranks group) {
    const SplitClasses classes(group, kClasses);
    const torch::Tensor mine = part_of(numbers({2, kClasses}), group);
    EXPECT_TRUE(std::isnan(classes.mean_cross_entropy(mine, torch::tensor({-100, -100})).item<double>()));
  });
}

TEST(SplitClasses, LabelsAndLogitsThatDoNotFitAreRefused) {
  run_ranks(2, [](Ranks group) {
    const SplitClasses classes(group, kClasses);
    const torch::Tensor mine = part_of(numbers({1, kClasses}), group);
    EXPECT_THAT(error_of([&] { classes.mean_cross_entropy(mine, torch::tensor({kClasses})); }),
                HasSubstr("a label is not among the 11 classes"));
    EXPECT_THAT(error_of([&] { classes.mean_cross_entropy(numbers({1, kClasses}), torch::tensor({0})); }),
                HasSubstr("the logits have 11 classes, but rank"));
    EXPECT_THAT(error_of([&] { SplitClasses(group, 1); }), HasSubstr("1 classes are too few for 2 ranks"));
  });
}

}  // namespace
}  // namespace fsdp::split_classes_test
