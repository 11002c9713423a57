// Takes the tensors out of a tuple of arguments or results and puts others back in.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp::detail {

template <typename T>
struct TensorPack {  // any other type holds no tensor that is looked for
  static constexpr bool kOnlyTensors = false;
  template <typename Visit>
  static void visit(T&, const Visit&) {}
};

template <>
struct TensorPack<at::Tensor> {
  static constexpr bool kOnlyTensors = true;
  template <typename Visit>
  static void visit(at::Tensor& tensor, const Visit& visit) {
    visit(tensor);
  }
};

template <>
struct TensorPack<std::optional<at::Tensor>> {
  static constexpr bool kOnlyTensors = true;
  template <typename Visit>
  static void visit(std::optional<at::Tensor>& tensor, const Visit& visit) {
    if (tensor) visit(*tensor);
  }
};

template <>
struct TensorPack<std::vector<at::Tensor>> {
  static constexpr bool kOnlyTensors = true;
  template <typename Visit>
  static void visit(std::vector<at::Tensor>& tensors, const Visit& visit) {
    for (at::Tensor& tensor : tensors) visit(tensor);
  }
};

template <typename... Parts>
struct TensorPack<std::tuple<Parts...>> {
  static constexpr bool kOnlyTensors = (TensorPack<Parts>::kOnlyTensors && ...);
  template <typename Visit>
  static void visit(std::tuple<Parts...>& parts, const Visit& visit) {
    std::apply([&](Parts&... part) { (TensorPack<Parts>::visit(part, visit), ...); }, parts);
  }
};

// Moves the tensors of `value` out, from left to right.
template <typename T>
std::vector<at::Tensor> take_tensors(T& value) {
  std::vector<at::Tensor> tensors;
  TensorPack<T>::visit(value, [&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, at::Tensor())); });
  return tensors;
}

// Puts `tensors` where take_tensors found them.
template <typename T>
void put_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  TensorPack<T>::visit(value, [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
}

}  // namespace fsdp::detail
