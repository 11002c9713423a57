// Bytes that kernels of the CPU take beside their results. The numbers were read off LibTorch 2.13's allocator on an
// AMD EPYC with AVX-512.
#include "planner/device/host_temporaries.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "planner/device/planned_device.h"

namespace fsdp::planner::host_temporaries_test {
namespace {

class HostTemporaries : public ::testing::Test {
 protected:
  void SetUp() override {
    begin_planning();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

// [batch, heads, tokens, width], with tokens before heads in memory.
at::Tensor host_heads(int64_t batch, int64_t heads, int64_t tokens, int64_t width, at::ScalarType dtype) {
  return torch::empty({batch, tokens, heads, width}, dtype).transpose(1, 2);
}

int64_t attention(int64_t tokens, int64_t width, at::ScalarType dtype) {
  const at::Tensor x = host_heads(1, 8, tokens, width, dtype);
  return host_temporaries("aten::_scaled_dot_product_flash_attention_for_cpu", {x, x, x});
}

TEST_F(HostTemporaries, AttentionHasATileForEachThread) {
  EXPECT_EQ(attention(128, 32, at::kFloat), 20736);
  EXPECT_EQ(attention(1024, 64, at::kFloat), 1183744 / 2);
  EXPECT_EQ(attention(128, 32, at::kBFloat16), 20736 + 8192);
  at::set_num_threads(2);
  EXPECT_EQ(attention(37, 12, at::kFloat), 13056);
}

int64_t attention_backward(const at::Tensor& gradient) {
  const at::Tensor x = host_heads(2, 8, 128, 32, at::kFloat);
  return host_temporaries("aten::_scaled_dot_product_flash_attention_for_cpu_backward", {gradient, x, x, x});
}

TEST_F(HostTemporaries, AttentionBackwardWantsTokensBeforeHeads) {
  EXPECT_EQ(attention_backward(host_heads(2, 8, 128, 32, at::kFloat)), 32768 + 128);
  EXPECT_EQ(attention_backward(torch::empty({2, 8, 128, 32})), 262144 + 32768 + 128);
}

TEST_F(HostTemporaries, NormsAndMeans) {
  const at::Tensor x = torch::empty({2, 128, 256});
  EXPECT_EQ(host_temporaries("aten::native_layer_norm_backward", {x, x, c10::List<int64_t>({256})}), 2048);
  EXPECT_EQ(host_temporaries("aten::mean", {x}), 0);
  EXPECT_EQ(host_temporaries("aten::mean", {x.to(at::kBFloat16)}), 4 * x.numel());
}

TEST_F(HostTemporaries, ProductsInBf16PackTheirFactors) {
  const auto product = [](int64_t rows, int64_t depth, int64_t columns, at::ScalarType dtype) {
    return host_temporaries("aten::mm", {torch::empty({rows, depth}, dtype), torch::empty({depth, columns}, dtype)});
  };
  EXPECT_EQ(product(256, 256, 300, at::kBFloat16), 99328);
  EXPECT_EQ(product(37, 44, 67, at::kBFloat16), 18688);
  EXPECT_EQ(product(2048, 1024, 4096, at::kBFloat16), 132096);
  EXPECT_EQ(product(256, 256, 300, at::kFloat), 0);
}

TEST_F(HostTemporaries, ConvolutionsCopyTensorsIntoBlocks) {
  const at::Tensor input = torch::empty({2, 16, 32, 32}), weight = torch::empty({32, 16, 3, 3});
  const c10::List<int64_t> one({1, 1}), none({0, 0});
  EXPECT_EQ(host_temporaries("aten::convolution", {input, weight, {}, one, one, one, false, none, 1}), 262144);
}

TEST_F(HostTemporaries, OtherOperatorsTakeNothing) {
  const at::Tensor x = torch::empty({2, 3});
  EXPECT_EQ(host_temporaries("aten::gelu", {x}), 0);
}

}  // namespace
}  // namespace fsdp::planner::host_temporaries_test
