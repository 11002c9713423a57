#include "planner/tape/product_work.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <unordered_map>

namespace fsdp::planner {
namespace {

using torch::jit::Stack;

double double_of(int64_t value) { return static_cast<double>(value); }

bool has_rows(const at::Tensor& tensor) { return tensor.dim() >= 2 && tensor.stride(-1) == 1; }
bool has_columns(const at::Tensor& tensor) {
  return tensor.dim() >= 2 && tensor.stride(-2) == 1 && tensor.stride(-1) != 1;
}

ProductWork matrices(const at::Tensor& a, const at::Tensor& b) {
  ProductWork work{.across_rows = has_columns(a) && has_rows(b), .dtype = a.scalar_type()};
  if (a.dim() == 3) work.batch = a.size(0);
  work.m = a.dim() < 2 ? 1 : a.size(-2);
  work.k = a.size(-1);
  work.n = b.dim() < 2 ? 1 : b.size(-1);
  work.flops = 2 * double_of(work.batch) * double_of(work.m) * double_of(work.n) * double_of(work.k);
  return work;
}

ProductWork of_first_two(const Stack& arguments) { return matrices(arguments[0].toTensor(), arguments[1].toTensor()); }
ProductWork added(const Stack& arguments) { return matrices(arguments[1].toTensor(), arguments[2].toTensor()); }

// `many`: the tensor that has the positions at which the weight is applied.
ProductWork convolved(const at::Tensor& many, const at::Tensor& weight, int64_t groups) {
  ProductWork work{.type = ProductType::kConvolution, .dtype = weight.scalar_type(), .batch = groups};
  work.m = many.numel() / many.size(1);
  work.n = weight.size(0) / groups;
  work.k = weight.numel() / weight.size(0);
  work.flops = 2 * double_of(work.m) * double_of(weight.numel());
  return work;
}

// The weight of a transposed convolution is applied at the positions of the input, and has the channels of the input
// first.
ProductWork convolution_work(const Stack& arguments, const Stack& results) {
  const at::Tensor &input = arguments[0].toTensor(), &output = results[0].toTensor();
  return convolved(arguments[6].toBool() ? input : output, arguments[1].toTensor(), arguments[8].toInt());
}

// The gradients of the input and of the weight are as much work as forward each.
ProductWork convolution_backward_work(const Stack& arguments) {
  const at::Tensor &output = arguments[0].toTensor(), &input = arguments[1].toTensor();
  ProductWork work = convolved(arguments[7].toBool() ? input : output, arguments[2].toTensor(), arguments[9].toInt());
  work.type = ProductType::kConvolutionBackward;
  const auto wanted = arguments[10].toBoolList();
  work.flops *= static_cast<double>(wanted.get(0)) + static_cast<double>(wanted.get(1));
  return work;
}

// `first`: the position of the queries, before those of keys and values. `bias`: that of the bias, if there can be one.
ProductWork attention_work(const Stack& arguments, size_t first, size_t causal, bool backward,
                           std::optional<size_t> bias = {}) {
  const at::Tensor &query = arguments[first].toTensor(), &key = arguments[first + 1].toTensor(),
                   &value = arguments[first + 2].toTensor();
  ProductWork work{.type = backward ? ProductType::kAttentionBackward : ProductType::kAttention,
                   .causal = arguments[causal].toBool(),
                   .biased = bias && arguments[*bias].isTensor() && arguments[*bias].toTensor().defined(),
                   .dtype = query.scalar_type(),
                   .batch = query.size(0) * query.size(1),
                   .m = query.size(2),
                   .n = key.size(2),
                   .k = query.size(3)};
  work.flops = (backward ? 4 : 2) * double_of(work.batch) * double_of(work.m) * double_of(work.n) *
               double_of(query.size(3) + value.size(3));
  return work;
}

ProductWork flash_work(const Stack& arguments) { return attention_work(arguments, 0, 4, false); }
ProductWork flash_backward_work(const Stack& arguments) { return attention_work(arguments, 1, 7, true); }
ProductWork efficient_work(const Stack& arguments) { return attention_work(arguments, 0, 6, false, 3); }
ProductWork efficient_backward_work(const Stack& arguments) { return attention_work(arguments, 1, 11, true, 4); }

}  // namespace

std::optional<ProductWork> product_work(const KernelCall& call) {
  static const std::unordered_map<std::string, ProductWork (*)(const Stack&)> table = {
      {"aten::mm", &of_first_two},
      {"aten::bmm", &of_first_two},
      {"aten::mv", &of_first_two},
      {"aten::dot", &of_first_two},
      {"aten::addmm", &added},
      {"aten::addmm_", &added},
      {"aten::addmv", &added},
      {"aten::addmv_", &added},
      {"aten::baddbmm", &added},
      {"aten::baddbmm_", &added},
      {"aten::convolution_backward", &convolution_backward_work},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &flash_work},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &flash_backward_work},
      {"aten::_scaled_dot_product_efficient_attention", &efficient_work},
      {"aten::_scaled_dot_product_efficient_attention_backward", &efficient_backward_work},
  };
  const std::string& name = call.op.schema().name();
  if (name == "aten::convolution") return convolution_work(call.arguments, call.results);
  const auto found = table.find(name);
  if (found == table.end()) return std::nullopt;
  return found->second(call.arguments);
}

}  // namespace fsdp::planner
