// Casts the inputs and results of a module, in whatever containers they come.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp {

// Returns `value` with its floating-point tensors cast to `dtype`, by operators that autograd records; everything else
// is unchanged. Looks into vectors, pairs, tuples, optionals and maps, also nested. For a user's type T, an overload T
// cast_floating(T value, c10::ScalarType dtype) in the namespace of T is found by argument-dependent lookup.
inline at::Tensor cast_floating(at::Tensor value, c10::ScalarType dtype) {
  return value.defined() && value.is_floating_point() ? value.to(dtype) : value;
}

template <typename T>
T cast_floating(T value, c10::ScalarType) {
  return value;
}
template <typename T>
std::vector<T> cast_floating(std::vector<T> values, c10::ScalarType dtype);
template <typename T>
std::optional<T> cast_floating(std::optional<T> value, c10::ScalarType dtype);
template <typename A, typename B>
std::pair<A, B> cast_floating(std::pair<A, B> values, c10::ScalarType dtype);
template <typename... T>
std::tuple<T...> cast_floating(std::tuple<T...> values, c10::ScalarType dtype);
template <typename K, typename V>
std::map<K, V> cast_floating(std::map<K, V> values, c10::ScalarType dtype);
template <typename K, typename V>
std::unordered_map<K, V> cast_floating(std::unordered_map<K, V> values, c10::ScalarType dtype);

template <typename T>
std::vector<T> cast_floating(std::vector<T> values, c10::ScalarType dtype) {
  for (T& value : values) value = cast_floating(std::move(value), dtype);
  return values;
}
template <typename T>
std::optional<T> cast_floating(std::optional<T> value, c10::ScalarType dtype) {
  if (value) value = cast_floating(std::move(*value), dtype);
  return value;
}
template <typename A, typename B>
std::pair<A, B> cast_floating(std::pair<A, B> values, c10::ScalarType dtype) {
  return {cast_floating(std::move(values.first), dtype), cast_floating(std::move(values.second), dtype)};
}
template <typename... T>
std::tuple<T...> cast_floating(std::tuple<T...> values, c10::ScalarType dtype) {
  return std::apply([&](auto&&... value) { return std::tuple<T...>(cast_floating(std::move(value), dtype)...); },
                    std::move(values));
}
template <typename K, typename V>
std::map<K, V> cast_floating(std::map<K, V> values, c10::ScalarType dtype) {
  for (auto& [key, value] : values) value = cast_floating(std::move(value), dtype);
  return values;
}
template <typename K, typename V>
std::unordered_map<K, V> cast_floating(std::unordered_map<K, V> values, c10::ScalarType dtype) {
  for (auto& [key, value] : values) value = cast_floating(std::move(value), dtype);
  return values;
}

}  // namespace fsdp
