#include "planner/device/shape_table.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ceil_div.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace fsdp::planner {
namespace {

using torch::jit::Stack;
using Sizes = std::vector<int64_t>;

at::Tensor make(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
}

// A tensor of the sizes and dtype of `tensor`, in its order of dimensions.
at::Tensor make_like(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return make(tensor.sizes(), tensor.scalar_type());
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

at::Tensor undefined() { return {}; }

at::Tensor optional_tensor(const c10::IValue& value) { return value.isNone() ? at::Tensor() : value.toTensor(); }

// ---------------------------------------------------------------- element by element

Stack like_first(const Stack& arguments) { return {make_like(arguments[0].toTensor())}; }
Stack contiguous_like_first(const Stack& arguments) {
  const at::Tensor& first = arguments[0].toTensor();
  return {make(first.sizes(), first.scalar_type())};
}
Stack bools_like_first(const Stack& arguments) { return {make(arguments[0].toTensor().sizes(), at::kBool)}; }

Stack bools_of_two(const Stack& arguments) {
  return {make(at::infer_size(arguments[0].toTensor().sizes(), arguments[1].toTensor().sizes()), at::kBool)};
}

Stack number_of_first(const Stack& arguments) { return {make({}, arguments[0].toTensor().scalar_type())}; }

Stack where(const Stack& arguments) {
  const at::Tensor &condition = arguments[0].toTensor(), &self = arguments[1].toTensor(),
                   &other = arguments[2].toTensor();
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return {make(sizes, at::native::result_type(self, other))};
}

Stack index_select(const Stack& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  Sizes sizes = self.sizes().vec();
  if (!sizes.empty()) {
    sizes[static_cast<size_t>(c10::maybe_wrap_dim(arguments[1].toInt(), self.dim()))] = arguments[2].toTensor().numel();
  }
  return {make(sizes, self.scalar_type())};
}

// ---------------------------------------------------------------- normalization

// Statistics are kept in fp32 where the input has fewer bits.
at::ScalarType dtype_of_statistics(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Stack layer_norm(const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  Sizes sizes = input.sizes().vec();
  for (size_t i = sizes.size() - arguments[1].toListRef().size(); i < sizes.size(); ++i) sizes[i] = 1;
  const at::ScalarType dtype = dtype_of_statistics(input);
  return {make(input.sizes(), input.scalar_type()), make(sizes, dtype), make(sizes, dtype)};
}

// Of the tensors at these positions, like each that the mask wants.
Stack wanted_like(const Stack& arguments, std::initializer_list<size_t> positions) {
  const auto mask = arguments.back().toBoolList();
  Stack results;
  size_t i = 0;
  for (const size_t position : positions) {
    const at::Tensor tensor = optional_tensor(arguments[position]);
    results.emplace_back(mask.get(i++) && tensor.defined() ? make(tensor.sizes(), tensor.scalar_type()) : undefined());
  }
  return results;
}

Stack layer_norm_backward(const Stack& arguments) { return wanted_like(arguments, {1, 5, 6}); }

Stack batch_norm(const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const bool training = arguments[5].toBool();
  const at::ScalarType dtype = dtype_of_statistics(input);
  const Sizes statistics{training ? input.size(1) : 0};
  return {make_like(input), make(statistics, dtype), make(statistics, dtype)};
}

Stack batch_norm_backward(const Stack& arguments) {
  const at::Tensor& input = arguments[1].toTensor();
  const at::Tensor weight = optional_tensor(arguments[2]);
  const at::ScalarType dtype = weight.defined() ? weight.scalar_type() : dtype_of_statistics(input);
  const auto mask = arguments.back().toBoolList();
  const Sizes channels{input.size(1)};
  return {mask.get(0) ? make_like(input) : undefined(), mask.get(1) ? make(channels, dtype) : undefined(),
          mask.get(2) ? make(channels, dtype) : undefined()};
}

Stack group_norm(const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const Sizes statistics{arguments[3].toInt(), arguments[6].toInt()};
  const at::ScalarType dtype = dtype_of_statistics(input);
  return {make(input.sizes(), input.scalar_type()), make(statistics, dtype), make(statistics, dtype)};
}

// ---------------------------------------------------------------- convolution and pooling

Stack convolution(const Stack& arguments) {
  const at::Tensor &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector(),
             dilation = arguments[5].toIntVector(), output_padding = arguments[7].toIntVector();
  const bool transposed = arguments[6].toBool();
  const int64_t groups = arguments[8].toInt();
  const auto at = [](const std::vector<int64_t>& values, size_t i) {
    return values.size() == 1 ? values[0] : values[i];
  };
  Sizes sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (size_t i = 0; i + 2 < static_cast<size_t>(input.dim()); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const int64_t extent = at(dilation, i) * (weight.size(dim) - 1) + 1;
    sizes.push_back(transposed
                        ? (input.size(dim) - 1) * at(stride, i) - 2 * at(padding, i) + extent + at(output_padding, i)
                        : (input.size(dim) + 2 * at(padding, i) - extent) / at(stride, i) + 1);
  }
  return {make(sizes, input.scalar_type())};
}

Stack convolution_backward(const Stack& arguments) {
  const at::Tensor &input = arguments[1].toTensor(), &weight = arguments[2].toTensor();
  const auto mask = arguments.back().toBoolList();
  const int64_t channels = arguments[0].toTensor().size(1);
  return {mask.get(0) ? make_like(input) : undefined(), mask.get(1) ? make_like(weight) : undefined(),
          mask.get(2) ? make({channels}, input.scalar_type()) : undefined()};
}

Stack adaptive_avg_pool2d(const Stack& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const auto output = arguments[1].toIntVector();
  Sizes sizes = self.sizes().vec();
  sizes[sizes.size() - 2] = output[0];
  sizes[sizes.size() - 1] = output[1];
  return {make(sizes, self.scalar_type())};
}

Stack like_second(const Stack& arguments) { return {make_like(arguments[1].toTensor())}; }

// ---------------------------------------------------------------- dropout and embeddings

Stack dropout(const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {make_like(input), make(input.sizes(), at::kBool)};
}

Stack embedding_backward(const Stack& arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  return {make({arguments[2].toInt(), gradient.size(-1)}, gradient.scalar_type())};
}

// ---------------------------------------------------------------- attention

// Tokens come before heads in memory.
at::Tensor make_heads(const at::Tensor& query, int64_t tokens, int64_t width) {
  return make({query.size(0), tokens, query.size(1), width}, query.scalar_type()).transpose(1, 2);
}

Stack attention_on_cpu(const Stack& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &value = arguments[2].toTensor();
  const at::Tensor sums = make({query.size(0), query.size(2), query.size(1)}, dtype_of_statistics(query));
  return {make_heads(query, query.size(2), value.size(3)), sums.transpose(1, 2)};
}

Stack attention_on_cpu_backward(const Stack& arguments) {
  Stack results;
  for (size_t i = 1; i <= 3; ++i) {
    const at::Tensor& tensor = arguments[i].toTensor();
    results.emplace_back(make_heads(tensor, tensor.size(2), tensor.size(3)));
  }
  return results;
}

// Sums of exponents are padded to a multiple of 32 queries.
Stack efficient_attention(const Stack& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &value = arguments[2].toTensor();
  const int64_t padded = arguments[4].toBool() ? (query.size(2) + 31) / 32 * 32 : 0;
  return {make_heads(query, query.size(2), value.size(3)), make({query.size(0), query.size(1), padded}, at::kFloat),
          make({}, at::kLong), make({}, at::kLong)};
}

// The gradient of a bias has rows of a multiple of 16 elements (attention_backward.cu).
at::Tensor make_padded(const at::Tensor& bias) {
  Sizes sizes = bias.sizes().vec();
  sizes.back() = at::round_up<int64_t>(sizes.back(), 16);
  return make(sizes, bias.scalar_type()).narrow(-1, 0, bias.size(-1));
}

Stack efficient_attention_backward(const Stack& arguments) {
  const auto mask = arguments[10].toBoolList();
  Stack results;
  for (size_t i = 0; i < 3; ++i) {
    const at::Tensor& tensor = arguments[i + 1].toTensor();
    results.emplace_back(mask.get(i) ? make_heads(tensor, tensor.size(2), tensor.size(3)) : undefined());
  }
  const at::Tensor bias = optional_tensor(arguments[4]);
  results.emplace_back(mask.get(3) && bias.defined() ? make_padded(bias) : undefined());
  return results;
}

}  // namespace

ShapeFunction find_shape_function(const c10::OperatorName& operation) {
  static const std::unordered_map<std::string, ShapeFunction> table = {
      {"aten::abs", &like_first},
      {"aten::relu", &like_first},
      {"aten::hardswish", &like_first},
      {"aten::hardtanh", &like_first},
      {"aten::roll", &contiguous_like_first},
      {"aten::flip", &like_first},
      {"aten::isnan", &bools_like_first},
      {"aten::dot", &number_of_first},
      {"aten::max", &number_of_first},
      {"aten::min", &number_of_first},
      {"aten::prod", &number_of_first},
      {"aten::where.self", &where},
      {"aten::logical_or", &bools_of_two},
      {"aten::logical_and", &bools_of_two},
      {"aten::logical_not", &bools_like_first},
      {"aten::index_select", &index_select},
      {"aten::native_layer_norm", &layer_norm},
      {"aten::native_layer_norm_backward", &layer_norm_backward},
      {"aten::native_batch_norm", &batch_norm},
      {"aten::native_batch_norm_backward", &batch_norm_backward},
      {"aten::native_group_norm", &group_norm},
      {"aten::convolution", &convolution},
      {"aten::convolution_backward", &convolution_backward},
      {"aten::_adaptive_avg_pool2d", &adaptive_avg_pool2d},
      {"aten::_adaptive_avg_pool2d_backward", &like_second},
      {"aten::native_dropout", &dropout},
      {"aten::native_dropout_backward", &like_first},
      {"aten::embedding_dense_backward", &embedding_backward},
      {"aten::_scaled_dot_product_efficient_attention", &efficient_attention},
      {"aten::_scaled_dot_product_efficient_attention_backward", &efficient_attention_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &attention_on_cpu},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &attention_on_cpu_backward},
  };
  const auto found = table.find(c10::toString(operation));
  return found == table.end() ? nullptr : found->second;
}

}  // namespace fsdp::planner
