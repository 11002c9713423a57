#include "comm/reduce_kernels.h"

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace fsdp {
namespace {

// Elements that are summed together: few enough for the sums to stay in the first-level cache.
constexpr int64_t kBlock = 1024;

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline float load(float value) { return value; }
inline double load(double value) { return value; }
inline float load(c10::Half value) { return static_cast<float>(value); }
inline float load(c10::BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16); }

template <typename A>
inline void store(A value, float* to) {
  *to = static_cast<float>(value);
}
template <typename A>
inline void store(A value, double* to) {
  *to = static_cast<double>(value);
}
template <typename A>
inline void store(A value, c10::Half* to) {
  *to = c10::Half(static_cast<float>(value));
}
// Rounds to nearest, ties to even, without a branch, so that loops around it are vectorised; NaN becomes a
// quiet NaN.
template <typename A>
inline void store(A value, c10::BFloat16* to) {
  const float single = static_cast<float>(value);
  const uint32_t bits = std::bit_cast<uint32_t>(single);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->x = static_cast<uint16_t>(single == single ? rounded : 0x7fc0);
}

// `count` is a constant for whole blocks, so that the loops are vectorised, and a variable for the rest.
template <typename In, typename Out, typename Count>
void sum_block(Out* output, const std::vector<const In*>& parts, int64_t begin, Count count, Accumulator<In> scale) {
  Accumulator<In> sums[kBlock];
  const In* first = parts[0] + begin;
  for (int64_t i = 0; i < count; ++i) sums[i] = load(first[i]);
  for (size_t part = 1; part < parts.size(); ++part) {
    const In* next = parts[part] + begin;
    for (int64_t i = 0; i < count; ++i) sums[i] += load(next[i]);
  }
  Out* to = output + begin;
  for (int64_t i = 0; i < count; ++i) store(sums[i] * scale, to + i);
}

template <typename In, typename Out>
void sum_blocks(Out* output, const std::vector<const In*>& parts, int64_t numel, Accumulator<In> scale) {
  int64_t begin = 0;
  for (; begin + kBlock <= numel; begin += kBlock) {
    sum_block(output, parts, begin, std::integral_constant<int64_t, kBlock>(), scale);
  }
  sum_block(output, parts, begin, numel - begin, scale);
}

template <typename In, typename Out>
void sum_typed(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale) {
  std::vector<const In*> pointers;
  pointers.reserve(parts.size());
  for (const auto& part : parts) pointers.push_back(static_cast<const In*>(part.const_data_ptr()));
  sum_blocks<In, Out>(static_cast<Out*>(output.mutable_data_ptr()), pointers, output.numel(),
                      static_cast<Accumulator<In>>(scale));
}

template <typename In>
bool sum_from(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale) {
  switch (output.scalar_type()) {
    case at::kFloat:
      sum_typed<In, float>(output, parts, scale);
      return true;
    case at::kDouble:
      sum_typed<In, double>(output, parts, scale);
      return true;
    case at::kBFloat16:
      sum_typed<In, c10::BFloat16>(output, parts, scale);
      return true;
    case at::kHalf:
      sum_typed<In, c10::Half>(output, parts, scale);
      return true;
    default:
      return false;
  }
}

bool sum_on_cpu(at::Tensor& output, const std::vector<at::Tensor>& parts, double scale) {
  if (!output.is_cpu()) return false;
  switch (parts[0].scalar_type()) {
    case at::kFloat:
      return sum_from<float>(output, parts, scale);
    case at::kDouble:
      return sum_from<double>(output, parts, scale);
    case at::kBFloat16:
      return sum_from<c10::BFloat16>(output, parts, scale);
    case at::kHalf:
      return sum_from<c10::Half>(output, parts, scale);
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

}  // namespace

void sum_in_order(at::Tensor output, const std::vector<at::Tensor>& parts, double scale) {
  TORCH_CHECK(!parts.empty(), "a reduction needs at least one contribution");
  for (const auto& part : parts) {
    TORCH_CHECK(part.numel() == output.numel() && part.scalar_type() == parts[0].scalar_type(),
                "contributions to a reduction differ: ", part.numel(), " elements of ", part.scalar_type(),
                ", expected ", output.numel(), " of ", parts[0].scalar_type());
  }
  if (output.numel() == 0 || sum_on_cpu(output, parts, scale)) return;
  sum_with_aten(output, parts, scale);
}

}  // namespace fsdp
