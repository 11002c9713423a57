// Reads, writes and squares elements of the four floating dtypes for reductions, block by block.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace fsdp::comm {

// Number of elements that are processed together: few enough for the first-level cache.
constexpr int64_t kReduceBlock = 1024;

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
// Rounds to nearest, ties to even, without a branch, so that loops around it are vectorised. NaN becomes a quiet NaN.
template <typename A>
inline void store(A value, c10::BFloat16* to) {
  const float single = static_cast<float>(value);
  const uint32_t bits = std::bit_cast<uint32_t>(single);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->x = static_cast<uint16_t>(single == single ? rounded : 0x7fc0);
}

template <typename Sum, typename T, typename Count>
Sum squares_side_by_side(const T* values, Count count) {
  constexpr int64_t kLanes = 16;
  Sum lanes[kLanes] = {};
  const auto add = [&](int64_t lane, const T& element) {
    const auto value = static_cast<Sum>(load(element));
    lanes[lane] += value * value;
  };
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) add(lane, values[i + lane]);
  }
  for (int64_t lane = 0; lane < count - whole; ++lane) add(lane, values[whole + lane]);
  Sum sum = 0;
  for (const Sum lane : lanes) sum += lane;
  return sum;
}

// Returns the sum of the squares of at most kReduceBlock elements, in a summation order that depends on `count` alone.
// Computes in fp32, and again in fp64 if that overflows or loses digits. The result is not finite only if an element is
// not finite, except for doubles above 1e150.
template <typename T, typename Count>
double squares_of_block(const T* values, Count count) {
  constexpr double kSmall = 1e-24;
  const double sum = squares_side_by_side<Accumulator<T>>(values, count);
  if (std::isfinite(sum) && sum > kSmall) return sum;
  bool zeros = true;
  for (int64_t i = 0; i < count; ++i) zeros &= load(values[i]) == 0;
  return zeros ? 0 : squares_side_by_side<double>(values, count);
}

}  // namespace fsdp::comm
