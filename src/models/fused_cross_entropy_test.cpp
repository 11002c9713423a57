#include "models/fused_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "models/loss.h"
#include "models/testing/operator_calls.h"
#include "support/faults/error_of.h"
#include "support/memory/counting_allocator.h"

namespace fsdp::models::fused_cross_entropy_test {
namespace {

using fsdp::testing::CountedMemory;
using testing::error_of;
using ::testing::HasSubstr;

struct Inputs {
  torch::Tensor hidden_states, weight, labels;
};

// Makes hidden_states [1, tokens, width] and weight [classes, width]; every fourth label, starting with the third, is
// ignored.
Inputs make_inputs(int64_t tokens, int64_t width, int64_t classes, c10::ScalarType dtype = torch::kFloat64) {
  torch::manual_seed(tokens + 100 * width);
  Inputs inputs = {torch::randn({1, tokens, width}).to(dtype), torch::randn({classes, width}).to(dtype),
                   torch::randint(classes, {1, tokens})};
  inputs.labels.masked_fill_(torch::arange(tokens).remainder(4).eq(2), kIgnoredLabel);
  inputs.hidden_states.requires_grad_();
  inputs.weight.requires_grad_();
  return inputs;
}

struct Results {
  torch::Tensor loss, hidden_states, weight;  // the last two are gradients
};

Results backward(const Inputs& inputs, const torch::Tensor& loss, double scale = 1) {
  inputs.hidden_states.mutable_grad().reset();
  inputs.weight.mutable_grad().reset();
  (loss * scale).backward();
  return {loss.detach(), inputs.hidden_states.grad(), inputs.weight.grad()};
}

Results plain(const Inputs& inputs, double scale = 1, const LogitScaling& scaling = {}) {
  const torch::Tensor logits = scaling.apply(torch::linear(inputs.hidden_states, inputs.weight));
  return backward(inputs, mean_cross_entropy(logits, inputs.labels), scale);
}

Results fused(const Inputs& inputs, int64_t chunk = 0, double scale = 1, const LogitScaling& scaling = {}) {
  return backward(inputs, fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels, chunk, scaling),
                  scale);
}

Inputs in_fp64(const Inputs& inputs) {
  return {inputs.hidden_states.detach().to(torch::kFloat64).requires_grad_(),
          inputs.weight.detach().to(torch::kFloat64).requires_grad_(), inputs.labels};
}

const LogitScaling kScalings[] = {{.divisor = 3.0}, {.softcap = 2.5}, {.divisor = 0.7, .softcap = 4.0}};

double relative_error(const torch::Tensor& got, const torch::Tensor& want) {
  const torch::Tensor exact = want.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - exact).norm() / exact.norm().clamp_min(1e-30)).item<double>();
}

void expect_near(const Results& got, const Results& want, double tolerance) {
  for (auto part : {&Results::loss, &Results::hidden_states, &Results::weight}) {
    EXPECT_EQ((got.*part).scalar_type(), (want.*part).scalar_type());
    EXPECT_EQ((got.*part).sizes(), (want.*part).sizes());
    EXPECT_LE(relative_error(got.*part, want.*part), tolerance);
  }
}

TEST(FusedCrossEntropy, EqualsThePlainLossForAllChunks) {
  for (int64_t tokens : {1, 2, 7, 8, 9, 16, 21}) {
    const Inputs inputs = make_inputs(tokens, 5, 13);
    const Results want = plain(inputs);
    for (int64_t chunk : {0, 1, 2, 3, 7, 8, 20, 21, 22, 64}) {
      SCOPED_TRACE(c10::str(tokens, " tokens in chunks of ", chunk));
      expect_near(fused(inputs, chunk), want, 1e-14);
    }
  }
}

TEST(FusedCrossEntropy, InFp32DiffersByTheOrderOfAdditions) {
  const Inputs inputs = make_inputs(70, 24, 301, torch::kFloat32);
  for (int64_t chunk : {0, 1, 8, 32, 70}) expect_near(fused(inputs, chunk), plain(inputs), 1e-6);
}

// Sums over 300 chunks of one token are as close to the exact sums as the single product of the plain loss.
TEST(FusedCrossEntropy, LowPrecisionLosesNothingToChunks) {
  for (c10::ScalarType dtype : {torch::kBFloat16, torch::kFloat16}) {
    const Inputs inputs = make_inputs(300, 16, 40, dtype);
    const Results want = plain(in_fp64(inputs)), theirs = plain(inputs);
    for (int64_t chunk : {1, 64, 300}) {
      const Results ours = fused(inputs, chunk);
      for (auto part : {&Results::loss, &Results::hidden_states, &Results::weight}) {
        EXPECT_EQ((ours.*part).scalar_type(), (theirs.*part).scalar_type());
        EXPECT_LE(relative_error(ours.*part, want.*part), 1.1 * relative_error(theirs.*part, want.*part) + 1e-6);
      }
    }
  }
}

TEST(FusedCrossEntropy, OfScaledLogitsEqualsThePlainLossForAllChunks) {
  for (const LogitScaling& scaling : kScalings) {
    for (int64_t tokens : {1, 2, 9, 21}) {
      const Inputs inputs = make_inputs(tokens, 5, 13);
      const Results want = plain(inputs, 1, scaling);
      EXPECT_GT(relative_error(plain(inputs).weight, want.weight), 0.01);
      for (int64_t chunk : {0, 1, 2, 3, 7, 8, 20, 21, 22, 64}) {
        SCOPED_TRACE(c10::str(tokens, " tokens in chunks of ", chunk, ", divisor ", scaling.divisor, ", softcap ",
                              scaling.softcap.value_or(0)));
        expect_near(fused(inputs, chunk, 1, scaling), want, 1e-14);
      }
    }
  }
}

// Gradients are computed from logits that are rounded once more than the results of tanh.
TEST(FusedCrossEntropy, OfScaledLogitsLosesNothingInLowPrecision) {
  for (const LogitScaling& scaling : kScalings) {
    for (c10::ScalarType dtype : {torch::kBFloat16, torch::kFloat16}) {
      const Inputs inputs = make_inputs(300, 16, 40, dtype);
      const Results want = plain(in_fp64(inputs), 1, scaling), theirs = plain(inputs, 1, scaling);
      for (int64_t chunk : {1, 64, 300}) {
        SCOPED_TRACE(c10::str(dtype, " in chunks of ", chunk, ", divisor ", scaling.divisor, ", softcap ",
                              scaling.softcap.value_or(0)));
        const Results ours = fused(inputs, chunk, 1, scaling);
        for (auto part : {&Results::loss, &Results::hidden_states, &Results::weight}) {
          EXPECT_EQ((ours.*part).scalar_type(), (theirs.*part).scalar_type());
          EXPECT_LE(relative_error(ours.*part, want.*part), 1.3 * relative_error(theirs.*part, want.*part) + 1e-6);
        }
      }
    }
  }
}

TEST(FusedCrossEntropy, OfScaledLogitsComputesTheWantedGradients) {
  for (const LogitScaling& scaling : kScalings) {
    Inputs inputs = make_inputs(9, 5, 13);
    const Results want = plain(inputs, 1, scaling);
    const auto loss = [&] {
      return fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels, 4, scaling);
    };
    {
      const torch::NoGradGuard no_grad;
      EXPECT_LE(relative_error(loss(), want.loss), 1e-14);
    }
    inputs.weight.requires_grad_(false);
    backward(inputs, loss());
    EXPECT_LE(relative_error(inputs.hidden_states.grad(), want.hidden_states), 1e-14);
    EXPECT_FALSE(inputs.weight.grad().defined());
    inputs.hidden_states.requires_grad_(false);
    inputs.weight.requires_grad_();
    backward(inputs, loss());
    EXPECT_LE(relative_error(inputs.weight.grad(), want.weight), 1e-14);
    EXPECT_FALSE(inputs.hidden_states.grad().defined());
    inputs.weight.requires_grad_(false);
    EXPECT_FALSE(loss().requires_grad());
    EXPECT_LE(relative_error(loss(), want.loss), 1e-14);
  }
}

// Without the scale most gradients of 4000 tokens would be 0 in fp16; with the scale, sums over tokens would be
// infinite in fp16.
TEST(FusedCrossEntropy, ScaledLossesNeitherUnderflowNorOverflow) {
  const Inputs inputs = make_inputs(4000, 8, 400, torch::kFloat16);
  const Results want = plain(in_fp64(inputs), 65536), ours = fused(inputs, 0, 65536);
  EXPECT_LE(relative_error(ours.hidden_states, want.hidden_states), 2e-3);
  EXPECT_LE(relative_error(ours.weight, want.weight), 2e-3);
}

TEST(FusedCrossEntropy, WithoutLabelsLossIsNaNAndGradientsZero) {
  for (int64_t tokens : {0, 5}) {
    Inputs inputs = make_inputs(tokens, 3, 7);
    inputs.labels.fill_(kIgnoredLabel);
    const Results want = plain(inputs), got = fused(inputs, 2);
    EXPECT_TRUE(want.loss.isnan().item<bool>() && got.loss.isnan().item<bool>());
    EXPECT_TRUE(torch::equal(got.hidden_states, torch::zeros_like(inputs.hidden_states)));
    EXPECT_TRUE(torch::equal(got.weight, want.weight) && torch::equal(got.weight, torch::zeros_like(inputs.weight)));
  }
}

TEST(FusedCrossEntropy, ComputesNoUnneededGradients) {
  Inputs inputs = make_inputs(9, 5, 13);
  const Results want = plain(inputs);
  const auto products = [&](const std::function<void()>& run) {
    OperatorCalls mm("aten::mm"), addmm("aten::addmm_");
    run();
    return std::pair(mm.count(), addmm.count());
  };
  const auto loss = [&] { return fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels, 3); };
  const auto [of_hidden_states, of_weight] = products([&] { loss(); });
  EXPECT_EQ(of_weight, 3);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(products([&] { EXPECT_FALSE(loss().requires_grad()); }), std::pair(of_hidden_states - 3, 0));
  }
  inputs.weight.requires_grad_(false);  // as LoRA freezes it
  EXPECT_EQ(products([&] { loss(); }), std::pair(of_hidden_states, 0));
  backward(inputs, loss());
  EXPECT_LE(relative_error(inputs.hidden_states.grad(), want.hidden_states), 1e-14);
  EXPECT_FALSE(inputs.weight.grad().defined());
  inputs.hidden_states.requires_grad_(false);
  inputs.weight.requires_grad_();
  EXPECT_EQ(products([&] { loss(); }), std::pair(of_hidden_states - 3, 3));
  backward(inputs, loss());
  EXPECT_LE(relative_error(inputs.weight.grad(), want.weight), 1e-14);
  EXPECT_FALSE(inputs.hidden_states.grad().defined());
}

TEST(FusedCrossEntropy, AKeptGraphMayBeUsedAgain) {
  const Inputs inputs = make_inputs(9, 5, 13);
  const Results want = plain(inputs);
  inputs.weight.mutable_grad().reset();
  const torch::Tensor loss = fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels, 4);
  const torch::Tensor alone = torch::autograd::grad({loss}, {inputs.weight}, {}, /*retain_graph=*/true)[0];
  EXPECT_LE(relative_error(alone, want.weight), 1e-14);
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_LE(relative_error(inputs.weight.grad(), 2 * want.weight), 1e-14);
  EXPECT_LE(relative_error(alone, want.weight), 1e-14);
  EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("a second time"));
}

TEST(FusedCrossEntropy, UnsupportedInputsAreErrors) {
  const Inputs inputs = make_inputs(9, 5, 13);
  const auto loss = [&] { return fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels); };
  EXPECT_THAT(error_of([&] { loss().backward({}, std::nullopt, /*create_graph=*/true); }),
              HasSubstr("double backward (create_graph) is not supported"));
  const auto error = [](const torch::Tensor& hidden_states, const torch::Tensor& weight, const torch::Tensor& labels) {
    return error_of([&] { fused_cross_entropy(hidden_states, weight, labels); });
  };
  EXPECT_THAT(error(inputs.hidden_states, inputs.weight.t(), inputs.labels), HasSubstr("the weight of shape [5, 13]"));
  EXPECT_THAT(error(inputs.hidden_states, inputs.weight, inputs.labels.view(-1)), HasSubstr("labels are of shape [9]"));
  torch::Tensor wrong = inputs.labels.clone();
  wrong[0][7] = 13;
  EXPECT_THAT(error(inputs.hidden_states, inputs.weight, wrong), HasSubstr("Target 13 is out of bounds"));
  const auto level = torch::autograd::forward_ad::enter_dual_level();
  {
    const torch::Tensor dual = torch::_make_dual(inputs.hidden_states.detach(), inputs.hidden_states.detach(), 0);
    EXPECT_THAT(error(dual, inputs.weight, inputs.labels), HasSubstr("no forward-mode gradients"));
  }
  torch::autograd::forward_ad::exit_dual_level(level);
}

// With autocast, linear takes bf16 and caches its cast of the weight. The cast made here has no graph, and must not be
// used by other operators.
TEST(FusedCrossEntropy, FollowsAutocast) {
  const Inputs inputs = make_inputs(40, 16, 50, torch::kFloat32);
  const bool was_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const torch::Tensor got = fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels, 16);
  const torch::Tensor logits = torch::linear(inputs.hidden_states, inputs.weight);
  const torch::Tensor want = mean_cross_entropy(logits, inputs.labels);
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled);
  at::autocast::clear_cache();
  EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
  const Results expected = backward(inputs, want), ours = backward(inputs, got);
  ASSERT_TRUE(expected.weight.defined());
  EXPECT_LE(relative_error(ours.loss, expected.loss), 1e-6);
  EXPECT_LE(relative_error(ours.hidden_states, expected.hidden_states), 1e-2);
  EXPECT_LE(relative_error(ours.weight, expected.weight), 1e-2);
}

TEST(FusedCrossEntropy, Chunks) {
  // The logits are as large as the hidden states.
  EXPECT_EQ(cross_entropy_chunk(8192, 512, 8192), 512);
  EXPECT_EQ(cross_entropy_chunk(8193, 512, 8192), 1024);
  // The logits are as large as a quarter of the weight.
  EXPECT_EQ(cross_entropy_chunk(512, 512, 8192), 128);
  EXPECT_EQ(cross_entropy_chunk(512, 576, 49152), 256);
  EXPECT_EQ(cross_entropy_chunk(0, 1, 5), 1);
}

int64_t peak_bytes(const std::function<void()>& run) {
  CountedMemory memory;
  const int64_t before = memory.current_bytes();
  memory.reset_peak();
  run();
  return memory.peak_bytes() - before;
}

// The plain loss stores log-probabilities and two gradients of their size. The fused loss stores three times a chunk
// and the gradients of weight and hidden states; the plain loss also stores the gradient of the weight.
TEST(FusedCrossEntropy, HoldsNoLogits) {
  const int64_t tokens = 1024, width = 32, classes = 2000;
  const Inputs inputs = make_inputs(tokens, width, classes, torch::kFloat32);
  const int64_t logits = tokens * classes * 4, chunk = cross_entropy_chunk(tokens, width, classes) * classes * 4;
  const int64_t of_inputs = (tokens * width + classes * width) * 4;
  plain(inputs);  // allocates the gradients of the inputs before the measurements
  const int64_t whole = peak_bytes([&] { plain(inputs); }), chunked = peak_bytes([&] { fused(inputs); });
  EXPECT_GE(whole, 3 * logits);
  EXPECT_LE(chunked, 3 * chunk + of_inputs + logits / 50);
  const torch::NoGradGuard no_grad;
  EXPECT_LE(peak_bytes([&] { fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels); }),
            2 * chunk + logits / 50);
}

}  // namespace
}  // namespace fsdp::models::fused_cross_entropy_test
