#include "planner/device/kernel_temporaries.h"

#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

namespace fsdp::planner {
namespace {

using torch::jit::Stack;
using Bytes = std::vector<int64_t>;

constexpr int64_t kBytesOfFloat = 4;
constexpr int64_t kBytesOfIndex = 8;
// Decides only where layer_norm sums in two passes; the number of an A100.
constexpr int64_t kMultiprocessors = 108;
// Modelled: cuDNN chooses its workspace at run time.
constexpr int64_t kMostConvolutionWorkspace = int64_t{64} << 20;
constexpr int64_t kBatchNormWorkspace = int64_t{1} << 20;

int64_t sum_of_bytes(const Bytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }
int64_t nbytes_of_one(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// For Tensor::contiguous().
void add_copy(Bytes& bytes, const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) bytes.push_back(nbytes_of_one(tensor));
}

// ---------------------------------------------------------------- attention

// [batch, heads, tokens, width] of queries and of the two others.
struct AttentionSizes {
  AttentionSizes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value)
      : batch(query.size(0)),
        heads(query.size(1)),
        queries(query.size(2)),
        width(query.size(3)),
        key_heads(key.size(1)),
        keys(key.size(2)),
        value_width(value.size(3)),
        element(static_cast<int64_t>(query.element_size())) {}

  int64_t batch, heads, queries, width, key_heads, keys, value_width;
  int64_t element;  // bytes
};

// mha_bwd in transformers/cuda/flash_attn/flash_api.cpp: dq_accum, softmax_d, dk_expanded, dv_expanded; and
// _flash_attention_backward in attention_backward.cu, which makes the gradient contiguous with tokens before heads.
Bytes taken_by_flash_backward(const Stack& arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  const AttentionSizes sizes(arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor());
  const int64_t queries = at::round_up<int64_t>(sizes.queries, 128);
  const int64_t width = at::round_up<int64_t>(sizes.width, sizes.width <= 128 ? 32 : 64);
  Bytes bytes = {kBytesOfFloat * sizes.batch * sizes.heads * queries,
                 kBytesOfFloat * sizes.batch * queries * sizes.heads * width};
  if (sizes.key_heads != sizes.heads) {
    bytes.insert(bytes.end(), 2, sizes.element * sizes.batch * sizes.keys * sizes.heads * sizes.width);
  }
  add_copy(bytes, gradient.transpose(1, 2));
  return bytes;
}

// output_accum in attention.cu: where an output does not fit into registers, which hold 128 elements a row
// (AttentionKernel::kNeedsOutputAccumulatorBuffer, kernels/cutlassF.h).
Bytes taken_by_efficient_forward(const Stack& arguments) {
  const AttentionSizes sizes(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor());
  if (sizes.element > 2 || sizes.value_width <= 128) return {};
  return {kBytesOfFloat * sizes.batch * sizes.queries * sizes.heads * sizes.value_width};
}

// How the kernel for backward cuts the matrix of queries and keys.
struct AttentionTile {
  int64_t queries, keys;
  bool sums_in_memory;  // whether gradients of keys and values do not fit into registers
};

// The first kernel of dispatch_cutlassB_*_sm80 (mem_eff_attention/kernels/cutlassB.h) that is wide enough.
AttentionTile tile_of(const AttentionSizes& sizes) {
  const bool half = sizes.element == 2;
  const int64_t width = std::max(sizes.width, sizes.value_width);
  if (width <= 64) return {64, 64, false};
  if (half && width <= 128) return {128, 128, false};
  return {128, 64, half};
}

// AttentionBackwardKernel::Params::workspace_size in mem_eff_attention/kernel_backward.h, with the number of splits
// that attention_backward.cu chooses.
int64_t efficient_workspace(const AttentionSizes& sizes) {
  const AttentionTile tile = tile_of(sizes);
  int64_t elements = at::ceil_div<int64_t>(sizes.queries, tile.queries) *
                     at::ceil_div<int64_t>(sizes.width, tile.keys) *
                     (4 + tile.queries * tile.keys);  // a tile begins with a lock, a counter and padding
  if (tile.sums_in_memory) {
    int64_t splits = at::ceil_div<int64_t>(sizes.keys, tile.keys);
    if (sizes.batch * sizes.heads >= 256 && sizes.keys <= 2 * tile.keys) splits = 1;
    splits = std::max<int64_t>(1, std::min(splits, 200 / (sizes.batch * sizes.heads)));
    elements +=
        splits * tile.keys *
        (at::round_up<int64_t>(sizes.width, tile.queries) + at::round_up<int64_t>(sizes.value_width, tile.queries));
  }
  return kBytesOfFloat * sizes.batch * sizes.heads * at::round_up<int64_t>(elements, 4);
}

// _efficient_attention_backward in attention_backward.cu: delta and the workspace. In fp32, delta is a sum of products
// that are made before.
Bytes taken_by_efficient_backward(const Stack& arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  const AttentionSizes sizes(arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor());
  const int64_t rows = kBytesOfFloat * sizes.batch * sizes.heads * sizes.queries;
  Bytes bytes = {rows, efficient_workspace(sizes)};
  const Bytes products = {rows, rows, rows * sizes.value_width};
  if (sizes.element > 2 && sum_of_bytes(products) > sum_of_bytes(bytes)) bytes = products;
  add_copy(bytes, gradient.transpose(1, 2));
  return bytes;
}

// ---------------------------------------------------------------- norms and embeddings

// LaunchGammaBetaBackwardCUDAKernel in cuda/layer_norm_kernel.cu: gradients of weight and bias have partial sums only
// where there are many rows, and they are short.
Bytes taken_by_layer_norm_backward(const Stack& arguments) {
  const at::Tensor &gradient = arguments[0].toTensor(), &input = arguments[1].toTensor();
  Bytes bytes;
  add_copy(bytes, gradient);
  int64_t columns = 1;
  for (const c10::IValue& size : arguments[2].toListRef()) columns *= size.toInt();
  const int64_t rows = columns == 0 ? 0 : input.numel() / columns;
  constexpr int64_t kManyRows = 64 * 1024, kWarp = 32, kRowsOfBlock = 32, kMostBlocks = 32 * 1024;
  if (rows <= kManyRows || columns / kWarp >= kMultiprocessors / 2) return bytes;
  const int64_t blocks =
      std::min(kMostBlocks / at::ceil_div<int64_t>(columns, kWarp), at::ceil_div<int64_t>(rows, kRowsOfBlock));
  for (size_t i = 1; i <= 2; ++i) {
    if (arguments.back().toBoolList().get(i))
      bytes.push_back(blocks * columns * static_cast<int64_t>(input.itemsize()));
  }
  return bytes;
}

// embedding_dense_backward_cuda in cuda/Embedding.cu sorts the ids if there are many; embedding_backward_cuda_kernel in
// cuda/EmbeddingBackwardKernel.cu then sums the gradients of up to ten equal ids in fp32. What the sort itself takes is
// freed before.
Bytes taken_by_embedding_backward(const Stack& arguments) {
  const at::Tensor &gradient = arguments[0].toTensor(), &ids = arguments[1].toTensor();
  Bytes bytes;
  add_copy(bytes, gradient);
  add_copy(bytes, ids);
  constexpr int64_t kFewIds = 3072, kRowsOfSum = 10;
  if (ids.numel() <= kFewIds) return bytes;
  const int64_t segments = std::min(ids.numel(), arguments[2].toInt());
  const int64_t sums = ids.numel() / kRowsOfSum + segments;
  bytes.insert(bytes.end(), 3, ids.numel() * static_cast<int64_t>(ids.itemsize()));  // sorted, their places, segments
  bytes.insert(bytes.end(), 2, segments * kBytesOfIndex);
  bytes.push_back(sums * kBytesOfIndex);
  bytes.push_back(sums * gradient.size(-1) * std::max(kBytesOfFloat, static_cast<int64_t>(gradient.itemsize())));
  return bytes;
}

// ---------------------------------------------------------------- images

// Modelled: as much as the two tensors that are combined first, up to a limit.
Bytes taken_by_convolution(const Stack& arguments) {
  const int64_t combined = nbytes_of_one(arguments[0].toTensor()) + nbytes_of_one(arguments[1].toTensor());
  return {std::min(kMostConvolutionWorkspace, combined)};
}

Bytes taken_by_batch_norm(const Stack&) { return {kBatchNormWorkspace}; }

}  // namespace

std::vector<int64_t> kernel_temporaries(const std::string& name, const Stack& arguments) {
  static const std::unordered_map<std::string, Bytes (*)(const Stack&)> table = {
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &taken_by_flash_backward},
      {"aten::_scaled_dot_product_efficient_attention", &taken_by_efficient_forward},
      {"aten::_scaled_dot_product_efficient_attention_backward", &taken_by_efficient_backward},
      {"aten::native_layer_norm_backward", &taken_by_layer_norm_backward},
      {"aten::embedding_dense_backward", &taken_by_embedding_backward},
      {"aten::convolution", &taken_by_convolution},
      {"aten::convolution_backward", &taken_by_convolution},
      {"aten::native_batch_norm", &taken_by_batch_norm},
      {"aten::native_batch_norm_backward", &taken_by_batch_norm},
  };
  const auto found = table.find(name);
  return found == table.end() ? Bytes() : found->second(arguments);
}

bool runs_on_cublas(const std::string& name) {
  static const std::set<std::string> names = {"aten::mm",      "aten::bmm",      "aten::addmm", "aten::addmm_",
                                              "aten::baddbmm", "aten::baddbmm_", "aten::mv",    "aten::addmv",
                                              "aten::addmv_",  "aten::dot",      "aten::vdot",  "aten::linear"};
  return names.count(name) > 0;
}

}  // namespace fsdp::planner
