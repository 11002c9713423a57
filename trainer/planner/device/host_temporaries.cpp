#include "planner/device/host_temporaries.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <unordered_map>

namespace fsdp::planner {
namespace {

using torch::jit::Stack;

constexpr int64_t kFloatBytes = 4;

int64_t threads() { return at::get_num_threads(); }
int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }
int64_t bytes_of_copy(const at::Tensor& tensor) { return tensor.is_contiguous() ? 0 : bytes_of(tensor); }
bool has_half_precision(const at::Tensor& tensor) { return tensor.element_size() == 2; }

// ---------------------------------------------------------------- products

// What oneDNN's product of [rows, depth] and [depth, columns] in bf16 packs and sums up in: for each thread, a block of
// 64 columns of the second factor, sums in fp32, and, where the first factor is transposed, a copy of its block.
// Fitted to measurements, up to a MiB in a thread for the largest.
int64_t scratch_of_product(int64_t rows, int64_t depth, int64_t columns, bool transposed) {
  constexpr int64_t kColumns = 64, kMostRows = 256, kMostDepth = 512, kMostCopied = 1024, kAlignment = 1024;
  const int64_t block_rows = std::min(rows, kMostRows), block_depth = at::round_up<int64_t>(depth, 32);
  int64_t bytes = std::min(kColumns, at::round_up<int64_t>(columns, 32)) *
                  (kFloatBytes * block_rows + 2 * std::min(block_depth, kMostDepth));
  if (transposed) bytes += 2 * std::min(rows, kMostCopied) * std::min(depth, kMostCopied) * 5 / 8;
  return bytes + kAlignment;
}

int64_t taken_by_product(const at::Tensor& first, const at::Tensor& second) {
  if (!has_half_precision(first) || first.numel() == 0 || second.numel() == 0) return 0;
  const bool transposed = first.stride(-1) != 1;
  return threads() * scratch_of_product(first.size(-2), first.size(-1), second.size(-1), transposed);
}

int64_t taken_by_mm(const Stack& arguments) {
  return taken_by_product(arguments[0].toTensor(), arguments[1].toTensor());
}
int64_t taken_by_addmm(const Stack& arguments) {
  return taken_by_product(arguments[1].toTensor(), arguments[2].toTensor());
}

// ---------------------------------------------------------------- attention

// How cpu_flash_attention (cpu/FlashAttentionKernel.cpp) cuts the matrix of queries and keys.
struct HostAttentionTile {
  HostAttentionTile(const at::Tensor& query, const at::Tensor& key) {
    const int64_t tokens = query.size(2);
    queries = std::min<int64_t>(tokens, tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32);
    keys = std::min<int64_t>(key.size(2), 512);
  }
  int64_t queries, keys;
};

// For each thread: weights, maxima, sums and results of a tile; weights again in the dtype of the queries if that has
// fewer bits.
int64_t taken_by_attention(const Stack& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &key = arguments[1].toTensor();
  const HostAttentionTile tile(query, key);
  const int64_t weights = tile.queries * tile.keys;
  int64_t bytes = kFloatBytes * (weights + 2 * tile.queries + tile.queries * arguments[2].toTensor().size(3));
  if (has_half_precision(query)) bytes += 2 * weights;
  return threads() * bytes;
}

// For each thread, weights and their gradients; and the gradient with tokens before heads.
int64_t taken_by_attention_backward(const Stack& arguments) {
  const at::Tensor &gradient = arguments[0].toTensor(), &query = arguments[1].toTensor();
  const HostAttentionTile tile(query, arguments[2].toTensor());
  int64_t of_thread = kFloatBytes * 2 * tile.queries * tile.keys;
  int64_t bytes = bytes_of_copy(gradient.transpose(1, 2)) + kFloatBytes * tile.queries;
  if (has_half_precision(query)) {
    of_thread += 2 * 2 * tile.queries * tile.keys;
    bytes += scratch_of_product(tile.keys, tile.queries, query.size(3), /*transposed=*/true);
  }
  return bytes + threads() * of_thread;
}

// ---------------------------------------------------------------- element by element

// TensorIterator converts what has not the common dtype.
int64_t taken_by_mixed_dtypes(const Stack& arguments) {
  if (!arguments[1].isTensor()) return 0;
  const at::Tensor &self = arguments[0].toTensor(), &other = arguments[1].toTensor();
  const at::ScalarType common = at::native::result_type(self, other);
  const auto converted = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == common ? 0 : tensor.numel() * static_cast<int64_t>(c10::elementSize(common));
  };
  return converted(self) + converted(other);
}

// ---------------------------------------------------------------- norms, sums and embeddings

// LayerNormBackwardKernelImplInternal in cpu/layer_norm_kernel.cpp: sums for weight and bias of each thread.
int64_t taken_by_layer_norm_backward_on_host(const Stack& arguments) {
  const at::Tensor &gradient = arguments[0].toTensor(), &input = arguments[1].toTensor();
  int64_t columns = 1;
  for (const c10::IValue& size : arguments[2].toListRef()) columns *= size.toInt();
  return bytes_of_copy(gradient) + bytes_of_copy(input) +
         2 * threads() * columns * static_cast<int64_t>(input.element_size());
}

// A mean is a sum in fp32 of a converted copy.
int64_t taken_by_mean(const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return has_half_precision(input) ? kFloatBytes * input.numel() : 0;
}

int64_t taken_by_embedding_backward_on_host(const Stack& arguments) {
  return bytes_of_copy(arguments[0].toTensor()) + bytes_of_copy(arguments[1].toTensor());
}

// batch_norm_backward_cpu_template: a sum of the input's size.
int64_t taken_by_batch_norm_backward(const Stack& arguments) {
  return bytes_of(arguments[1].toTensor()) + bytes_of_copy(arguments[0].toTensor());
}

// ---------------------------------------------------------------- convolutions

// oneDNN computes with blocks of channels: tensors are copied into and out of that form, except images of few channels,
// and except products of pixels in fp32 on one thread.
int64_t bytes_in_blocks(const at::Tensor& tensor) {
  constexpr int64_t kChannels = 16, kFewChannels = 3;
  const int64_t channels = tensor.size(1);
  if (channels <= kFewChannels) return 0;
  return bytes_of(tensor) / channels * at::round_up(channels, std::min<int64_t>(channels, kChannels));
}

bool multiplies_pixels(const at::Tensor& weight, const c10::IValue& stride) {
  const auto steps = stride.toIntVector();
  return weight.numel() == weight.size(0) * weight.size(1) &&
         std::all_of(steps.begin(), steps.end(), [](int64_t step) { return step == 1; });
}

bool is_plain_product(const at::Tensor& weight, const c10::IValue& stride) {
  return multiplies_pixels(weight, stride) && !has_half_precision(weight) && threads() == 1;
}

int64_t results_bytes(int64_t images, int64_t channels, const at::Tensor& input, const Stack& arguments) {
  int64_t elements = images * channels;
  const at::Tensor& weight = arguments[1].toTensor();
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector(),
             dilation = arguments[5].toIntVector();
  const auto value = [](const std::vector<int64_t>& values, size_t i) { return values[values.size() == 1 ? 0 : i]; };
  for (size_t i = 0; i + 2 < static_cast<size_t>(input.dim()); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const int64_t extent = value(dilation, i) * (weight.size(dim) - 1) + 1;
    elements *= (input.size(dim) + 2 * value(padding, i) - extent) / value(stride, i) + 1;
  }
  return elements * static_cast<int64_t>(input.element_size());
}

int64_t taken_by_convolution_on_host(const Stack& arguments) {
  const at::Tensor &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  if (is_plain_product(weight, arguments[3])) return 0;
  const int64_t images = std::max<int64_t>(1, input.size(0));
  const int64_t result = results_bytes(images, weight.size(0), input, arguments);
  int64_t inputs = bytes_in_blocks(input) + bytes_of(weight);
  if (has_half_precision(input) && multiplies_pixels(weight, arguments[3])) inputs += threads() * 2 * result / images;
  return std::max(inputs, result);
}

int64_t bytes_with_padding(const at::Tensor& image, const std::vector<int64_t>& padding) {
  int64_t bytes = bytes_of(image);
  for (int64_t dim = 2; dim < image.dim(); ++dim) {
    const int64_t of_side = padding[padding.size() == 1 ? 0 : static_cast<size_t>(dim - 2)];
    bytes = bytes / image.size(dim) * (image.size(dim) + 2 * of_side);
  }
  return bytes;
}

// First the gradient of the input, then that of the weight. In half precision, the latter is summed up in fp32 from
// turned images. The former is copied once more where strides skip pixels.
int64_t taken_by_convolution_backward(const Stack& arguments) {
  const at::Tensor &gradient = arguments[0].toTensor(), &input = arguments[1].toTensor(),
                   &weight = arguments[2].toTensor();
  const int64_t copies = bytes_of_copy(gradient) + bytes_of_copy(input);
  if (is_plain_product(weight, arguments[4])) return copies;
  const auto mask = arguments.back().toBoolList();
  const bool is_pointwise = weight.numel() == weight.size(0) * weight.size(1);
  const bool skips_pixels = is_pointwise && !multiplies_pixels(weight, arguments[4]);
  const int64_t weight_gradient = mask.get(1) ? bytes_of(weight) : 0;
  const int64_t first =
      mask.get(0) ? std::max(bytes_in_blocks(gradient) + bytes_of(weight), (skips_pixels ? 2 : 1) * bytes_of(input))
                  : 0;
  int64_t second = bytes_in_blocks(gradient) + bytes_in_blocks(input);
  if (has_half_precision(input) && !is_pointwise) {
    const int64_t images = bytes_with_padding(input, arguments[5].toIntVector()) + bytes_of(gradient);
    second += threads() * (2 * bytes_of(weight) + images / std::max<int64_t>(1, input.size(0)));
  }
  return copies + std::max(first - weight_gradient, mask.get(1) ? second : 0);
}

}  // namespace

int64_t host_temporaries(const std::string& name, const Stack& arguments) {
  static const std::unordered_map<std::string, int64_t (*)(const Stack&)> table = {
      {"aten::mm", &taken_by_mm},
      {"aten::bmm", &taken_by_mm},
      {"aten::addmm", &taken_by_addmm},
      {"aten::addmm_", &taken_by_addmm},
      {"aten::baddbmm", &taken_by_addmm},
      {"aten::add", &taken_by_mixed_dtypes},
      {"aten::add_", &taken_by_mixed_dtypes},
      {"aten::sub", &taken_by_mixed_dtypes},
      {"aten::sub_", &taken_by_mixed_dtypes},
      {"aten::mul", &taken_by_mixed_dtypes},
      {"aten::mul_", &taken_by_mixed_dtypes},
      {"aten::div", &taken_by_mixed_dtypes},
      {"aten::div_", &taken_by_mixed_dtypes},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &taken_by_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &taken_by_attention_backward},
      {"aten::native_layer_norm_backward", &taken_by_layer_norm_backward_on_host},
      {"aten::mean", &taken_by_mean},
      {"aten::embedding_dense_backward", &taken_by_embedding_backward_on_host},
      {"aten::native_batch_norm_backward", &taken_by_batch_norm_backward},
      {"aten::convolution", &taken_by_convolution_on_host},
      {"aten::convolution_backward", &taken_by_convolution_backward},
  };
  const auto found = table.find(name);
  return found == table.end() ? 0 : found->second(arguments);
}

}  // namespace fsdp::planner
