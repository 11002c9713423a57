#include "planner/pricing/kernel_price.h"

#include <gtest/gtest.h>

#include "planner/time/kernel_time.h"

namespace fsdp::planner::kernel_price_test {
namespace {

const Cluster kCluster = parse_cluster("8xa100-80");

KernelPrice price_of(const ProductWork& work, int64_t bytes = 0) {
  const TapeEntry entry{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .id = 0, .bytes = bytes};
  return price_kernel(Tape({entry}, {"aten::one"}, {work}), entry, kCluster);
}

KernelPrice price_of_bytes(int64_t bytes, bool crosses) {
  const TapeEntry entry{.kind = TapeKind::kKernel, .crosses = crosses, .stream = 0, .name = 0, .bytes = bytes};
  return price_kernel(Tape({entry}, {"aten::one"}), entry, kCluster);
}

ProductWork matrices(at::ScalarType dtype) {
  return {.dtype = dtype, .batch = 1, .m = 4096, .n = 4096, .k = 4096, .flops = 2.0 * 4096 * 4096 * 4096};
}

ProductWork attention(ProductType type, bool causal) {
  const double forward = 4.0 * 64 * 2048 * 2048 * 128;
  return {.type = type,
          .causal = causal,
          .dtype = at::kBFloat16,
          .batch = 64,
          .m = 2048,
          .n = 2048,
          .k = 128,
          .flops = type == ProductType::kAttention ? forward : 2 * forward};
}

double beyond_fixed(const KernelPrice& price) { return price.seconds - kCluster.speed.fixed_seconds; }

TEST(KernelPrice, ProductsByTheirType) {
  const KernelPrice half = price_of(matrices(at::kBFloat16)), single = price_of(matrices(at::kFloat));
  EXPECT_EQ(half.kind, WorkKind::kMatrixProducts);
  EXPECT_FALSE(half.memory_bound());
  EXPECT_NEAR(beyond_fixed(single) / beyond_fixed(half), 312 / 19.5, 1e-9);
  EXPECT_NEAR(half.least, 2.0 * 4096 * 4096 * 4096 / 312e12, 1e-12);
  EXPECT_GT(half.seconds, half.least);
}

TEST(KernelPrice, ConvolutionsInSinglePrecisionUseTensorCores) {
  ProductWork convolution = matrices(at::kFloat);
  convolution.type = ProductType::kConvolution;
  EXPECT_NEAR(beyond_fixed(price_of(matrices(at::kFloat))) / beyond_fixed(price_of(convolution)), 156 / 19.5, 1e-9);
}

// Two gradients are twice the arithmetic of one, a weight's gradient a little more.
TEST(KernelPrice, BackwardOfConvolutions) {
  ProductWork forward = matrices(at::kBFloat16), one = forward, both = forward;
  forward.type = ProductType::kConvolution;
  one.type = both.type = ProductType::kConvolutionBackward;
  both.flops *= 2;
  EXPECT_GE(price_of(one).seconds, price_of(forward).seconds);
  EXPECT_NEAR(price_of(both).seconds, price_of(one).seconds + price_of(forward).seconds, 1e-9);
}

TEST(KernelPrice, CausalAttentionIsHalf) {
  const KernelPrice all = price_of(attention(ProductType::kAttention, false));
  const KernelPrice causal = price_of(attention(ProductType::kAttention, true));
  EXPECT_EQ(all.kind, WorkKind::kAttention);
  EXPECT_NEAR(beyond_fixed(all), 2 * beyond_fixed(causal), 1e-12);
}

// Five products in place of two, at the lower rate of backward.
TEST(KernelPrice, BackwardOfAttentionComputesFiveProducts) {
  const double forward = beyond_fixed(price_of(attention(ProductType::kAttention, true)));
  const double backward = beyond_fixed(price_of(attention(ProductType::kAttentionBackward, true)));
  EXPECT_NEAR(backward / forward, 2.5 * 0.62 / 0.53, 1e-9);
}

TEST(KernelPrice, OtherKernelsMoveBytes) {
  const KernelPrice price = price_of_bytes(int64_t{1} << 30, false);
  EXPECT_EQ(price.seconds, memory_seconds(kCluster.speed, 1 << 30));
  EXPECT_NEAR(price.least, (1 << 30) / 2039e9, 1e-12);
  EXPECT_TRUE(price.memory_bound());
}

TEST(KernelPrice, CopiesCrossTheHostsLink) {
  const KernelPrice price = price_of_bytes(int64_t{1} << 30, true);
  EXPECT_EQ(price.kind, WorkKind::kCopies);
  EXPECT_NEAR(beyond_fixed(price), (1 << 30) / 24e9, 1e-9);
}

// Twice the rate, and casts of both operands.
TEST(KernelPrice, StacksMultiplyInFloat8) {
  const Cluster h100 = parse_cluster("8xh100");
  const auto seconds = [&](const ProductWork& work, int64_t vocabulary = 0) {
    const TapeEntry entry{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .id = 0};
    const KernelOptions options{.stack = {.float8_products = true}, .vocabulary = vocabulary};
    return price_kernel(Tape({entry}, {"aten::mm"}, {work}), entry, h100, options).seconds;
  };
  const auto plain = [&](const ProductWork& work) {
    const TapeEntry entry{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .id = 0};
    return price_kernel(Tape({entry}, {"aten::mm"}, {work}), entry, h100).seconds;
  };
  const ProductWork half = matrices(at::kBFloat16);
  const double casts = memory_seconds(h100.speed, 3.0 * 2 * 4096 * 4096);
  EXPECT_NEAR((seconds(half) - casts - 3e-6) / (plain(half) - 3e-6), 989.0 / 1979, 1e-9);
  ProductWork odd = half;
  odd.k = 4097;
  for (const ProductWork& work : {odd, matrices(at::kFloat)}) EXPECT_EQ(seconds(work), plain(work));
  EXPECT_EQ(seconds(half, 4096), plain(half));  // the head
}

TEST(KernelPrice, StacksHaveTheirOwnAttentionAndOptimizer) {
  const KernelOptions options{.stack = {.attention_rate = 0.5, .optimizer_traffic = 3}};
  const TapeEntry attend{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .id = 0};
  const Tape tape({attend}, {"aten::attend"}, {attention(ProductType::kAttention, true)});
  EXPECT_NEAR(price_kernel(tape, attend, kCluster, options).seconds, 2 * price_kernel(tape, attend, kCluster).seconds,
              1e-12);
  ProductWork biased = attention(ProductType::kAttention, false);
  biased.biased = true;
  const Tape with_bias({attend}, {"aten::attend"}, {biased});
  const KernelOptions skipping{.stack = {.skips_masked_keys = true}};
  EXPECT_EQ(price_kernel(with_bias, attend, kCluster, skipping).seconds, price_kernel(tape, attend, kCluster).seconds);
  EXPECT_GT(price_kernel(with_bias, attend, kCluster).seconds, price_kernel(tape, attend, kCluster).seconds);
  const TapeEntry update{.kind = TapeKind::kKernel, .stream = 0, .name = 0, .bytes = 1 << 30};
  for (const auto& [name, factor] : {std::pair("aten::_fused_adamw_", 3.0), std::pair("aten::_fused_sgd_", 1.0)}) {
    EXPECT_EQ(price_kernel(Tape({update}, {name}), update, kCluster, options).seconds,
              memory_seconds(kCluster.speed, factor * (1 << 30)))
        << name;
  }
}

TEST(KernelPrice, NothingIsLaunchedForNothing) { EXPECT_EQ(price_of_bytes(0, false).seconds, 0); }

}  // namespace
}  // namespace fsdp::planner::kernel_price_test
