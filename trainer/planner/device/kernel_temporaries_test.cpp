// Bytes that kernels take beside their results, computed on paper from the sizes in LibTorch's sources.
#include "planner/device/kernel_temporaries.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <thread>

#include "planner/device/matmul_workspaces.h"
#include "planner/run/planned_run.h"
#include "planner/testing/recording.h"
#include "planner/testing/small_models.h"

namespace fsdp::planner::kernel_temporaries_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

at::Tensor on_device(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) {
  begin_planning();
  return torch::empty(sizes, at::TensorOptions(dtype).device(planned_device()));
}

// [batch, heads, tokens, width], with tokens before heads in memory.
at::Tensor heads(int64_t batch, int64_t heads, int64_t tokens, int64_t width, at::ScalarType dtype = at::kBFloat16) {
  return on_device({batch, tokens, heads, width}, dtype).transpose(1, 2);
}

// Returns the bytes of what is freed right after the kernel of the only call of `name`.
std::vector<int64_t> temporaries(const Tape& tape, const std::string& name) {
  std::map<int64_t, int64_t> bytes;
  std::vector<int64_t> found;
  const std::vector<TapeEntry>& entries = tape.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].kind == TapeKind::kAllocation) bytes[entries[i].id] = entries[i].bytes;
    if (entries[i].kind != TapeKind::kKernel || tape.name(entries[i]) != name) continue;
    for (size_t next = i + 1; next < entries.size() && entries[next].kind == TapeKind::kFree; ++next) {
      found.push_back(bytes.at(entries[next].id));
    }
  }
  return found;
}

template <typename Run>
std::vector<int64_t> temporaries_of(const std::string& name, const Run& run) {
  Recording recording;
  const auto results = run();  // outlive the search
  return temporaries(recording.tape(), name);
}

struct Shape {
  int64_t batch, heads, queries, keys, width;
};

std::vector<int64_t> flash_backward(const Shape& s, int64_t key_heads, bool strided_gradient = false) {
  const at::Tensor query = heads(s.batch, s.heads, s.queries, s.width);
  const at::Tensor key = heads(s.batch, key_heads, s.keys, s.width);
  const at::Tensor gradient = strided_gradient ? on_device(query.sizes()) : heads(s.batch, s.heads, s.queries, s.width);
  const at::Tensor sums = on_device({s.batch, s.queries, s.heads}, at::kFloat).transpose(1, 2);
  return temporaries_of("aten::_scaled_dot_product_flash_attention_for_cpu_backward", [&] {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, query, key, key, query, sums, 0.0, true);
  });
}

TEST(KernelTemporaries, FlashBackwardPadsTokensAndWidth) {
  // 256 = 130 rounded up, 64 = 40 rounded up.
  EXPECT_THAT(flash_backward({2, 4, 130, 130, 40}, 4), UnorderedElementsAre(2 * 4 * 256 * 4, 2 * 256 * 4 * 64 * 4));
  // Above 128, the width is rounded up to a multiple of 64.
  EXPECT_THAT(flash_backward({1, 2, 128, 128, 136}, 2), UnorderedElementsAre(2 * 128 * 4, 128 * 2 * 192 * 4));
}

TEST(KernelTemporaries, FlashBackwardHasGradientsForEveryHead) {
  EXPECT_THAT(flash_backward({2, 4, 130, 70, 40}, 2),
              UnorderedElementsAre(8192, 524288, 2 * 70 * 4 * 40 * 2, 2 * 70 * 4 * 40 * 2));
}

TEST(KernelTemporaries, FlashBackwardCopiesAStridedGradient) {
  EXPECT_THAT(flash_backward({2, 4, 130, 130, 40}, 4, true), UnorderedElementsAre(8192, 524288, 2 * 130 * 4 * 40 * 2));
}

std::vector<int64_t> efficient_backward(const Shape& s, at::ScalarType dtype, bool with_bias = false) {
  const at::Tensor query = heads(s.batch, s.heads, s.queries, s.width, dtype);
  const at::Tensor key = heads(s.batch, s.heads, s.keys, s.width, dtype);
  const at::Tensor gradient = heads(s.batch, s.heads, s.queries, s.width, dtype);
  const at::Tensor bias = with_bias ? on_device({s.batch, s.heads, s.queries, s.keys}, dtype) : at::Tensor();
  const at::Tensor sums = on_device({s.batch, s.heads, s.queries}, at::kFloat), seed = on_device({}, at::kLong);
  return temporaries_of("aten::_scaled_dot_product_efficient_attention_backward", [&] {
    return at::_scaled_dot_product_efficient_attention_backward(gradient, query, key, key, bias, query, sums, seed,
                                                                seed, 0.0, {true, true, true, with_bias});
  });
}

TEST(KernelTemporaries, EfficientBackwardHasTilesOfTheQueriesGradient) {
  // Two tiles of 64 x 64 for each head, with 4 elements each before them.
  EXPECT_THAT(efficient_backward({2, 3, 100, 70, 40}, at::kBFloat16, true),
              UnorderedElementsAre(2 * 3 * 100 * 4, 6 * 2 * (4 + 64 * 64) * 4));
  // One of 128 x 128.
  EXPECT_THAT(efficient_backward({2, 3, 100, 70, 128}, at::kBFloat16),
              UnorderedElementsAre(2400, 6 * (4 + 128 * 128) * 4));
  EXPECT_THAT(efficient_backward({1, 2, 100, 100, 64}, at::kFloat),
              UnorderedElementsAre(2 * 100 * 4, 2 * 2 * (4 + 64 * 64) * 4));
}

TEST(KernelTemporaries, EfficientBackwardInFp32MakesProducts) {
  EXPECT_THAT(efficient_backward({1, 2, 128, 128, 64}, at::kFloat), UnorderedElementsAre(1024, 1024, 128 * 2 * 64 * 4));
}

TEST(KernelTemporaries, WideHeadsAreSummedInMemory) {
  // Three tiles of 128 x 64; and for keys and values four splits of 64 x 256.
  EXPECT_THAT(efficient_backward({2, 3, 100, 200, 136}, at::kBFloat16),
              UnorderedElementsAre(2400, 6 * (3 * (4 + 128 * 64) + 2 * 4 * 64 * 256) * 4));
  const at::Tensor query = heads(2, 3, 100, 136);
  EXPECT_THAT(
      temporaries_of("aten::_scaled_dot_product_efficient_attention",
                     [&] { return at::_scaled_dot_product_efficient_attention(query, query, query, {}, true); }),
      ElementsAre(2 * 100 * 3 * 136 * 4));
}

std::vector<int64_t> layer_norm_backward(int64_t rows, int64_t columns) {
  const at::Tensor input = on_device({rows, columns}, at::kFloat), weight = on_device({columns}, at::kFloat);
  const at::Tensor statistics = on_device({rows, 1}, at::kFloat);
  return temporaries_of("aten::native_layer_norm_backward", [&] {
    return at::native_layer_norm_backward(input, input, {columns}, statistics, statistics, weight, weight,
                                          {true, true, true});
  });
}

TEST(KernelTemporaries, LayerNormBackwardOfManyShortRowsHasPartialSums) {
  EXPECT_THAT(layer_norm_backward(70000, 48), ElementsAre(2188 * 48 * 4, 2188 * 48 * 4));
  EXPECT_THAT(layer_norm_backward(65536, 48), IsEmpty());
  EXPECT_THAT(layer_norm_backward(70000, 54 * 32), IsEmpty());
}

std::vector<int64_t> embedding_backward(int64_t ids, int64_t rows) {
  const at::Tensor gradient = on_device({ids, 24}), indices = on_device({ids}, at::kLong);
  return temporaries_of("aten::embedding_dense_backward",
                        [&] { return at::embedding_dense_backward(gradient, indices, rows, -1, false); });
}

TEST(KernelTemporaries, EmbeddingBackwardSortsManyIds) {
  EXPECT_THAT(embedding_backward(3072, 50), IsEmpty());
  EXPECT_THAT(embedding_backward(4000, 50), UnorderedElementsAre(32000, 32000, 32000, 400, 400, 450 * 8, 450 * 24 * 4));
  EXPECT_THAT(embedding_backward(4000, 5000),
              UnorderedElementsAre(32000, 32000, 32000, 32000, 32000, 4400 * 8, 4400 * 24 * 4));
}

TEST(KernelTemporaries, ConvolutionsHaveAWorkspace) {
  const at::Tensor weight = on_device({5, 3, 3, 3}, at::kFloat);
  const at::Tensor small = on_device({2, 3, 8, 8}, at::kFloat), large = on_device({2, 3, 2048, 2048}, at::kFloat);
  const auto workspace = [&](const at::Tensor& input) {
    return temporaries_of("aten::convolution", [&] { return at::conv2d(input, weight); });
  };
  EXPECT_THAT(workspace(small), ElementsAre((2 * 3 * 8 * 8 + 5 * 3 * 3 * 3) * 4));
  EXPECT_THAT(workspace(large), ElementsAre(64 << 20));
}

TEST(KernelTemporaries, OperatorsOnTheHostTakeThoseOfTheHost) {
  const at::Tensor input = torch::empty({2, 3, 8, 8}), weight = torch::empty({5, 3, 3, 3});
  EXPECT_THAT(temporaries_of("aten::convolution", [&] { return at::conv2d(input, weight); }),
              ElementsAre(2 * 5 * 6 * 6 * 4));
}

TEST(PlannedAttention, FlashKeepsPaddedHeads) {
  Recording recording;
  const at::Tensor query = heads(2, 4, 10, 9).requires_grad_();
  const at::Tensor attended = at::scaled_dot_product_attention(query, query, query, {}, 0.0, true);
  EXPECT_EQ(attended.size(-1), 9);
  std::vector<int64_t> padded;
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.bytes == 2 * 4 * 10 * 16 * 2) padded.push_back(entry.id);
  }
  EXPECT_EQ(padded.size(), 4);  // query, key, value, result
  for (const TapeEntry& entry : recording.tape().entries()) {
    if (entry.kind == TapeKind::kFree) {
      EXPECT_THAT(padded, ::testing::Not(::testing::Contains(entry.id)));
    }
  }
  attended.sum().backward();
  EXPECT_EQ(query.grad().size(-1), 9);
}

TEST(PlannedAttention, GradientOfABiasHasPaddedRows) {
  const at::Tensor query = heads(2, 3, 100, 40), key = heads(2, 3, 70, 40), bias = on_device({2, 3, 100, 70});
  const at::Tensor sums = on_device({2, 3, 100}, at::kFloat), seed = on_device({}, at::kLong);
  const auto results = at::_scaled_dot_product_efficient_attention_backward(query, query, key, key, bias, query, sums,
                                                                            seed, seed, 0.0, {true, true, true, true});
  EXPECT_EQ(std::get<3>(results).sizes(), bias.sizes());
  EXPECT_EQ(std::get<3>(results).stride(2), 80);
}

// Returns the bytes and streams of the workspaces on the tape.
std::vector<std::pair<int64_t, int>> workspaces(const Tape& tape) {
  std::vector<std::pair<int64_t, int>> found;
  for (const TapeEntry& entry : tape.entries()) {
    if (entry.kind == TapeKind::kAllocation && entry.name >= 0 && tape.name(entry) == "cuBLAS") {
      found.emplace_back(entry.bytes, entry.stream);
    }
  }
  return found;
}

TEST(MatmulWorkspaces, OneForEachThreadAndStreamThatMultiplies) {
  begin_planning();
  MatmulWorkspaces::get().reset(1000);
  Recording recording;
  const at::Tensor a = on_device({4, 4});
  at::relu(a);
  EXPECT_THAT(workspaces(recording.tape()), IsEmpty());
  at::mm(a, a);
  at::addmm(a, a, a);
  EXPECT_THAT(workspaces(recording.tape()), ElementsAre(std::pair(1000, 0)));
  {
    const c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, planned_device(), 3));
    at::bmm(a.unsqueeze(0), a.unsqueeze(0));
  }
  std::thread([&] { at::mm(a, a); }).join();
  EXPECT_THAT(workspaces(recording.tape()), ElementsAre(std::pair(1000, 0), std::pair(1000, 3), std::pair(1000, 0)));
  MatmulWorkspaces::get().reset(0);
  at::mm(a, a);
  EXPECT_EQ(workspaces(recording.tape()).size(), 3);
}

// Of the threads that run forward and backward.
TEST(MatmulWorkspaces, ARunOnADeviceHasTwo) {
  PlannedRun run(read_json(small_config("llama", {{"dtype", "bf16"}})),
                 {.has_device = true, .layout = {2, 2}, .matmul_workspace = 1000});
  run.step();
  run.step();
  EXPECT_THAT(workspaces(run.tape()), ElementsAre(std::pair(1000, 0), std::pair(1000, 0)));
}

TEST(MatmulWorkspaces, ARunOnTheHostHasNone) {
  PlannedRun run(read_json(small_config("llama", nlohmann::json::object())),
                 {.has_device = false, .layout = {2, 2}, .matmul_workspace = 1000});
  run.step();
  EXPECT_THAT(workspaces(run.tape()), IsEmpty());
}

}  // namespace
}  // namespace fsdp::planner::kernel_temporaries_test
