#include "comm/reduce_kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "comm/collective_shapes.h"
#include "comm/reduce_elements.h"

namespace fsdp::comm {
namespace {

// `count` is a constant for whole blocks, so that the loops are vectorised, and a variable for the rest.
template <typename In, typename Out, typename Count>
void sum_block(Out* output, const std::vector<const In*>& parts, int64_t begin, Count count, Accumulator<In> scale,
               double* squares) {
  Accumulator<In> sums[kReduceBlock];
  const In* first = parts[0] + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] = load(first[i]);
  for (size_t part = 1; part < parts.size(); ++part) {
    const In* next = parts[part] + begin;
    for (int64_t i = 0; i < count; ++i) sums[i] += load(next[i]);
  }
  Out* to = output + begin;
  for (int64_t i = 0; i < count; ++i) store(sums[i] * scale, to + i);
  if (squares != nullptr) *squares += squares_of_block(to, count);
}

template <typename In, typename Out>
void sum_blocks(Out* output, const std::vector<const In*>& parts, int64_t numel, Accumulator<In> scale,
                double* squares) {
  int64_t begin = 0;
  for (; begin + kReduceBlock <= numel; begin += kReduceBlock) {
    sum_block(output, parts, begin, std::integral_constant<int64_t, kReduceBlock>(), scale, squares);
  }
  sum_block(output, parts, begin, numel - begin, scale, squares);
}

template <typename In, typename Out>
void sum_typed(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale, double* squares) {
  std::vector<const In*> pointers;
  pointers.reserve(parts.size());
  for (const auto& part : parts) pointers.push_back(static_cast<const In*>(part.const_data_ptr()));
  sum_blocks<In, Out>(static_cast<Out*>(output.mutable_data_ptr()), pointers, output.numel(),
                      static_cast<Accumulator<In>>(scale), squares);
}

template <typename In>
bool sum_from(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale, double* squares) {
  switch (output.scalar_type()) {
    case at::kFloat:
      sum_typed<In, float>(output, parts, scale, squares);
      return true;
    case at::kDouble:
      sum_typed<In, double>(output, parts, scale, squares);
      return true;
    case at::kBFloat16:
      sum_typed<In, c10::BFloat16>(output, parts, scale, squares);
      return true;
    case at::kHalf:
      sum_typed<In, c10::Half>(output, parts, scale, squares);
      return true;
    default:
      return false;
  }
}

bool sum_on_cpu(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale, double* squares) {
  if (!output.is_cpu()) return false;
  switch (parts[0].scalar_type()) {
    case at::kFloat:
      return sum_from<float>(output, parts, scale, squares);
    case at::kDouble:
      return sum_from<double>(output, parts, scale, squares);
    case at::kBFloat16:
      return sum_from<c10::BFloat16>(output, parts, scale, squares);
    case at::kHalf:
      return sum_from<c10::Half>(output, parts, scale, squares);
    default:
      return false;
  }
}

void sum_with_aten(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale) {
  const auto dtype = parts[0].scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  TORCH_CHECK(!integral || (scale == 1.0 && output.scalar_type() == dtype), "a reduction of ", dtype,
              " tensors needs scale 1 and an output of the same dtype; the scale is ", scale, " and the output is ",
              output.scalar_type());
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  at::Tensor sum = parts[0].to(narrow ? at::kFloat : dtype, /*non_blocking=*/false, /*copy=*/true);
  for (size_t part = 1; part < parts.size(); ++part) sum.add_(parts[part]);
  if (scale != 1.0) sum.mul_(scale);
  output.copy_(sum);
}

// The squares of large finite doubles may overflow, so doubles themselves are checked.
ReductionSummary summary_from(const at::Tensor& output, double squares) {
  const bool finite =
      std::isfinite(squares) || (output.scalar_type() == at::kDouble && output.isfinite().all().item<bool>());
  return {.known = true, .finite = finite, .squared_norm = squares};
}

}  // namespace

void sum_in_order(at::Tensor output, const std::vector<at::Tensor>& parts, double scale, ReductionSummary* summary) {
  TORCH_CHECK(!parts.empty(), "a reduction needs at least one contribution");
  for (const auto& part : parts) {
    TORCH_CHECK(part.numel() == output.numel() && part.scalar_type() == parts[0].scalar_type(),
                "contributions to a reduction differ: ", part.numel(), " elements of ", part.scalar_type(),
                ", expected ", output.numel(), " of ", parts[0].scalar_type());
  }
  if (const at::Tensor& first = parts.front(); parts.size() == 1 && scale == 1.0 &&
                                               first.const_data_ptr() == output.const_data_ptr() &&
                                               first.scalar_type() == output.scalar_type()) {
    if (summary != nullptr) *summary = summary_of(output);
    return;
  }
  double squares = 0;
  if (output.numel() == 0 || sum_on_cpu(output, parts, scale, summary != nullptr ? &squares : nullptr)) {
    if (summary != nullptr) *summary = summary_from(output, squares);
    return;
  }
  sum_with_aten(output, parts, scale);
  if (summary != nullptr) *summary = summary_of(output);
}

ReductionSummary summary_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_floating_point()) return {};
  double squares = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, tensor.scalar_type(), "summary_of", [&] {
    const auto* values = tensor.const_data_ptr<scalar_t>();
    for (int64_t begin = 0; begin < tensor.numel(); begin += kReduceBlock) {
      squares += squares_of_block(values + begin, std::min(kReduceBlock, tensor.numel() - begin));
    }
  });
  return summary_from(tensor, squares);
}

ReductionSummary summary_in_parts(const at::Tensor& tensor, int parts) {
  std::vector<ReductionSummary> summaries;
  for (int number = 0; number < parts; ++number) {
    const Part part = part_of(tensor.numel(), number, parts);
    summaries.push_back(summary_of(tensor.narrow(0, part.begin, part.numel)));
  }
  return merged(summaries);
}

ReductionSummary merged(const std::vector<ReductionSummary>& parts) {
  ReductionSummary all{.known = true};
  for (const ReductionSummary& part : parts) {
    all.known &= part.known;
    all.finite &= part.finite;
    all.squared_norm += part.squared_norm;
  }
  return all;
}

}  // namespace fsdp::comm
