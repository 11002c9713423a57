#include "models/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>

#include "models/testing/counted_flops.h"
#include "support/faults/error_of.h"
#include "support/memory/counting_allocator.h"

namespace fsdp::models::attention_test {
namespace {

using fsdp::testing::CountedMemory;
using fsdp::testing::error_of;
using ::testing::HasSubstr;

struct Inputs {
  torch::Tensor query, key, value;
};

struct Shape {
  int64_t sequence, heads = 3, shared_heads = 3, head_dim = 4, batch = 2;
};

Inputs make_inputs(const Shape& shape, c10::ScalarType dtype = torch::kFloat64) {
  torch::manual_seed(shape.sequence + 1000 * shape.shared_heads);
  const auto random = [&](int64_t heads) {
    return torch::randn({shape.batch, heads, shape.sequence, shape.head_dim}).to(dtype).requires_grad_();
  };
  return {random(shape.heads), random(shape.shared_heads), random(shape.shared_heads)};
}

Inputs copied(const Inputs& inputs, c10::ScalarType dtype) {
  const auto copy = [&](const torch::Tensor& x) { return x.detach().to(dtype).requires_grad_(); };
  return {copy(inputs.query), copy(inputs.key), copy(inputs.value)};
}

torch::Tensor attend(const Inputs& inputs, const AttentionOptions& options) {
  return causal_attention(inputs.query, inputs.key, inputs.value, options);
}

// Returns the weights of the definition, [batch, heads, sequence, sequence].
torch::Tensor naive_weights(const Inputs& inputs, const AttentionOptions& options) {
  const int64_t sequence = inputs.query.size(2);
  const torch::Tensor key = inputs.key.repeat_interleave(inputs.query.size(1) / inputs.key.size(1), 1);
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(inputs.query.size(3))));
  torch::Tensor scores = torch::einsum("bhqd,bhkd->bhqk", {inputs.query, key}) * scale;
  if (options.softcap) scores = *options.softcap * torch::tanh(scores / *options.softcap);
  const torch::Tensor distance = torch::arange(sequence).unsqueeze(1) - torch::arange(sequence);
  const torch::Tensor hidden = (distance < 0) | (distance >= options.window.value_or(sequence));
  return torch::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
}

torch::Tensor naive(const Inputs& inputs, const AttentionOptions& options) {
  const torch::Tensor value = inputs.value.repeat_interleave(inputs.query.size(1) / inputs.value.size(1), 1);
  return torch::einsum("bhqk,bhkd->bqhd", {naive_weights(inputs, options), value}).flatten(2);
}

struct Results {
  torch::Tensor output, query, key, value;  // the last three are gradients
};

Results backward(const Inputs& inputs, const torch::Tensor& output) {
  torch::manual_seed(3);
  const torch::Tensor gradient = torch::randn(output.sizes()).to(output.scalar_type());
  const auto gradients = torch::autograd::grad({output}, {inputs.query, inputs.key, inputs.value}, {gradient});
  return {output.detach(), gradients[0], gradients[1], gradients[2]};
}

double relative_error(const torch::Tensor& got, const torch::Tensor& want) {
  const torch::Tensor exact = want.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - exact).norm() / exact.norm().clamp_min(1.0)).item<double>();
}

// Compares result and gradients.
void expect_near(const Results& got, const Results& want, double tolerance) {
  for (auto part : {&Results::output, &Results::query, &Results::key, &Results::value}) {
    EXPECT_EQ((got.*part).sizes(), (want.*part).sizes());
    EXPECT_LE(relative_error(got.*part, want.*part), tolerance);
  }
}

void expect_naive(const Inputs& inputs, const AttentionOptions& options) {
  SCOPED_TRACE(c10::str(inputs.query.sizes(), ", window ", options.window.value_or(0), ", softcap ",
                        options.softcap.value_or(0)));
  expect_near(backward(inputs, attend(inputs, options)), backward(inputs, naive(inputs, options)), 1e-13);
}

// Blocks have at least 64 queries.
TEST(CausalAttention, IsThatOfTheDefinitionForAllWindows) {
  for (int64_t sequence : {1, 2, 63, 64, 65, 130, 301}) {
    const Inputs inputs = make_inputs({.sequence = sequence});
    for (std::optional<double> softcap : {std::optional<double>(), std::optional(0.7)}) {
      expect_naive(inputs, {.softcap = softcap});
      for (int64_t window : {1, 2, 63, 64, 65, 127, 129, 150, 300, 301, 302, 1000}) {
        expect_naive(inputs, {.window = window, .softcap = softcap});
      }
    }
  }
}

TEST(CausalAttention, GroupsOfQueryHeadsShareAKey) {
  for (int64_t shared : {1, 2, 3, 6}) {
    const Inputs inputs = make_inputs({.sequence = 130, .heads = 6, .shared_heads = shared});
    for (const AttentionOptions& options :
         {AttentionOptions{}, AttentionOptions{.window = 20}, AttentionOptions{.softcap = 2.0},
          AttentionOptions{.window = 20, .softcap = 2.0}}) {
      expect_naive(inputs, options);
    }
  }
}

// Attention of the definition in which a key of another document is hidden.
torch::Tensor naive_by_document(const Inputs& inputs, const Documents& documents, const AttentionOptions& options) {
  std::vector<torch::Tensor> sequences;
  for (size_t i = 0; i < documents.lengths().size(); ++i) {
    std::vector<torch::Tensor> parts;
    int64_t begin = 0;
    for (const int64_t length : documents.lengths()[i]) {
      const auto part = [&](const torch::Tensor& x) {
        return x.slice(0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1).slice(2, begin, begin + length);
      };
      parts.push_back(naive({part(inputs.query), part(inputs.key), part(inputs.value)}, options));
      begin += length;
    }
    sequences.push_back(torch::cat(parts, 1));
  }
  return torch::cat(sequences, 0);
}

TEST(CausalAttention, DoesNotReachBeyondADocument) {
  const Inputs inputs = make_inputs({.sequence = 150, .heads = 4, .shared_heads = 2});
  for (const std::vector<std::vector<int64_t>>& lengths :
       {std::vector<std::vector<int64_t>>{{150}, {1, 149}}, {{1, 1, 140, 8}, {75, 75}}, {{3, 147}, {150}}}) {
    const Documents documents(lengths);
    for (const AttentionOptions& options :
         {AttentionOptions{}, AttentionOptions{.window = 20}, AttentionOptions{.softcap = 2.0},
          AttentionOptions{.scale = 0.3, .window = 80, .softcap = 2.0}}) {
      const torch::Tensor output = causal_attention(inputs.query, inputs.key, inputs.value, options, documents);
      expect_near(backward(inputs, output), backward(inputs, naive_by_document(inputs, documents, options)), 1e-13);
    }
  }
}

TEST(CausalAttention, RefusesDocumentsOfOtherSequences) {
  const Inputs inputs = make_inputs({.sequence = 6});
  const auto error = [&](std::vector<std::vector<int64_t>> lengths) {
    const Documents documents(std::move(lengths));
    return error_of([&] { causal_attention(inputs.query, inputs.key, inputs.value, {}, documents); });
  };
  EXPECT_THAT(error({{2, 4}}), HasSubstr("documents of 1 sequences, but a batch of 2"));
  EXPECT_THAT(error({{2, 4}, {2, 3}}), HasSubstr("the documents do not make up a sequence of 6 tokens"));
}

TEST(CausalAttention, MultipliesProductsByTheScale) {
  const Inputs inputs = make_inputs({.sequence = 70, .heads = 4, .shared_heads = 2});
  for (double scale : {0.1, 1.0, 2.5}) {
    expect_naive(inputs, {.scale = scale});
    expect_naive(inputs, {.scale = scale, .window = 9});
    expect_naive(inputs, {.scale = scale, .softcap = 1.5});
    expect_naive(inputs, {.scale = scale, .window = 9, .softcap = 1.5});
  }
  for (double scale : {0.0, -0.3}) {
    EXPECT_THAT(error_of([&] { attend(inputs, {.scale = scale}); }), HasSubstr("it must be greater than 0"));
  }
}

// With one-hot values, the results are the weights. Those that are kept are doubled.
TEST(CausalAttention, DropsWeightsAndScalesTheOthers) {
  const int64_t sequence = 70;
  Inputs inputs = make_inputs({.sequence = sequence, .heads = 2, .shared_heads = 2, .head_dim = sequence});
  inputs.value = torch::eye(sequence, torch::kFloat64).expand({2, 2, sequence, sequence});
  for (std::optional<double> softcap : {std::optional<double>(), std::optional(2.0)}) {
    const AttentionOptions options{.dropout = 0.5, .window = 40, .softcap = softcap};
    const torch::Tensor weights = naive_weights(inputs, options).transpose(1, 2).flatten(2);
    const torch::Tensor output = attend(inputs, options), dropped = output.eq(0) & weights.gt(0);
    EXPECT_TRUE(torch::allclose(output, (2 * weights).masked_fill(dropped, 0), 1e-12, 1e-14));
    EXPECT_NEAR(dropped.sum().item<double>() / weights.gt(0).sum().item<double>(), 0.5, 0.03);
  }
}

const AttentionOptions kLowPrecision[] = {{}, {.window = 50}, {.softcap = 2.0}, {.window = 50, .softcap = 2.0}};

// bf16 has 8 significant bits, and a few roundings follow each other.
TEST(CausalAttention, InBf16DiffersByRounding) {
  const Inputs inputs = make_inputs({.sequence = 150, .heads = 4, .shared_heads = 2}, torch::kBFloat16);
  const Inputs exact = copied(inputs, torch::kFloat64);
  for (const AttentionOptions& options : kLowPrecision) {
    const Results got = backward(inputs, attend(inputs, options));
    EXPECT_EQ(got.output.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(got.query.scalar_type(), torch::kBFloat16);
    expect_near(got, backward(exact, naive(exact, options)), 3.0 / 256);
  }
}

TEST(CausalAttention, InFullPrecisionRoundsOnce) {
  const Inputs inputs = make_inputs({.sequence = 150}, torch::kBFloat16), wide = copied(inputs, torch::kFloat32);
  for (AttentionOptions options : kLowPrecision) {
    const torch::Tensor want = attend(wide, options).to(torch::kBFloat16), rounded_often = attend(inputs, options);
    options.in_full_precision = true;
    EXPECT_TRUE(torch::equal(attend(inputs, options), want));
    if (options.softcap) {
      EXPECT_FALSE(torch::equal(rounded_often, want));
    }
  }
}

// LibTorch has no kernel for the masks of its fused attention there.
TEST(CausalAttention, WithASoftcapAcceptsMetaTensors) {
  const auto meta = [](int64_t heads) { return torch::empty({2, heads, 301, 4}, torch::device(torch::kMeta)); };
  for (std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(50)}) {
    const torch::Tensor output = causal_attention(meta(6), meta(2), meta(2), {.window = window, .softcap = 2.0});
    EXPECT_TRUE(output.is_meta());
    EXPECT_EQ(output.sizes(), torch::IntArrayRef({2, 301, 24}));
  }
}

double flops_of(int64_t sequence, const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  const Inputs inputs = make_inputs({.sequence = sequence, .heads = 2, .shared_heads = 1, .batch = 1});
  CountedFlops counted;
  attend(inputs, options);
  return counted.count();
}

// Two products, for 2 heads of 4 elements.
TEST(CausalAttention, LeavesOutBlocksOfUnreachableKeys) {
  const double pair = 2 * 2 * 2 * 4;
  // Four blocks of 100 queries, whose keys end with the block.
  EXPECT_EQ(flops_of(400, {.softcap = 2.0}), pair * 100 * (100 + 200 + 300 + 400));
  // Six blocks of 64 queries, and one of 16. A query of a block's end reaches 30 keys, so a block has 29 more.
  EXPECT_EQ(flops_of(400, {.window = 30, .softcap = 2.0}), pair * (64 * (64 + 5 * 93) + 16 * 45));
  EXPECT_EQ(flops_of(400, {.window = 30}), pair * (64 * (64 + 5 * 93) + 16 * 45));
}

TEST(CausalAttention, ComputesNothingBetweenDocuments) {
  const torch::NoGradGuard no_grad;
  const double pair = 2 * 2 * 2 * 4;
  const Inputs inputs = make_inputs({.sequence = 400, .heads = 2, .shared_heads = 1, .batch = 1});
  CountedFlops counted;
  causal_attention(inputs.query, inputs.key, inputs.value, {}, Documents({{100, 250, 50}}));
  EXPECT_EQ(counted.count(), pair * (100 * 100 + 250 * 250 + 50 * 50));
}

int64_t peak_bytes(int64_t sequence, const AttentionOptions& options) {
  const Inputs inputs = make_inputs({.sequence = sequence, .heads = 2, .shared_heads = 1}, torch::kFloat32);
  CountedMemory memory;
  const int64_t before = memory.current_bytes();
  memory.reset_peak();
  backward(inputs, attend(inputs, options));
  return memory.peak_bytes() - before;
}

// Without a window, scores take 4 times as much for twice the sequence.
TEST(CausalAttention, MemoryOfAWindowGrowsWithTheSequence) {
  for (std::optional<double> softcap : {std::optional<double>(), std::optional(2.0)}) {
    const AttentionOptions options{.window = 64, .softcap = softcap};
    EXPECT_LE(peak_bytes(2048, options), 2.2 * static_cast<double>(peak_bytes(1024, options)));
  }
  EXPECT_GE(peak_bytes(2048, {.softcap = 2.0}), 3.5 * static_cast<double>(peak_bytes(1024, {.softcap = 2.0})));
}

TEST(AttendedKeys, AreThoseOfTheWindowOrTheSequence) {
  EXPECT_EQ(attended_keys(7, std::nullopt), 7);
  EXPECT_EQ(attended_keys(7, 3), 3);
  EXPECT_EQ(attended_keys(7, 7), 7);
  EXPECT_EQ(attended_keys(7, 100), 7);
}

TEST(BiasedAttention, HasNeitherAWindowNorASoftcap) {
  const Inputs inputs = make_inputs({.sequence = 5});
  const auto error = [&](const AttentionOptions& options) {
    return error_of([&] { biased_attention(inputs.query, inputs.key, inputs.value, {}, options); });
  };
  EXPECT_EQ(error({}), fsdp::testing::kNoError);
  EXPECT_THAT(error({.window = 3}), HasSubstr("neither a window nor a softcap"));
  EXPECT_THAT(error({.softcap = 3.0}), HasSubstr("neither a window nor a softcap"));
}

}  // namespace
}  // namespace fsdp::models::attention_test
