#include "models/activations.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::models {
namespace {

at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor gelu(const at::Tensor& x) { return at::gelu(x); }
at::Tensor tanh_gelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"silu", silu}, {"swish", silu}, {"gelu", gelu}, {"gelu_new", tanh_gelu}, {"gelu_pytorch_tanh", tanh_gelu},
    {"relu", relu}};

}  // namespace

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const auto& [name, activation] : kActivations) names.emplace_back(name);
    return names;
  }();
  return kNames;
}

Activation activation_named(const std::string& wanted) {
  for (const auto& [name, activation] : kActivations) {
    if (wanted == name) return activation;
  }
  TORCH_CHECK(false, "no activation function is named \"", wanted,
              "\"; accepted: ", c10::Join(", ", activation_names()));
}

}  // namespace fsdp::models
