#include "planner/device/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>

#include <cmath>
#include <optional>
#include <set>

#include "planner/device/kept_library.h"

namespace fsdp::planner {
namespace {

constexpr const char* kStandIn = "aten::_scaled_dot_product_flash_attention_for_cpu";

bool has_half_width(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool has_mask(const std::optional<at::Tensor>& mask) { return mask && mask->defined(); }

// Conditions of sdp_utils.cpp for training on Ampere and newer.
bool flash_fits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& mask, bool causal) {
  constexpr int64_t kWidestHead = 256;
  const bool same_width = query.size(-1) == key.size(-1) && query.size(-1) == value.size(-1);
  const bool square = query.size(-2) == key.size(-2);
  return has_half_width(query) && !has_mask(mask) && same_width && query.size(-1) <= kWidestHead &&
         (!causal || square) && query.size(-2) > 0 && key.size(-2) > 0;
}

bool efficient_fits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const int64_t alignment = has_half_width(query) ? 8 : 4;  // elements
  return query.size(-1) % alignment == 0 && value.size(-1) % alignment == 0 && query.size(-3) == key.size(-3) &&
         query.size(-2) > 0 && key.size(-2) > 0 && query.scalar_type() != at::kDouble;
}

// LibTorch prefers cuDNN's attention on Hopper and Blackwell where cuDNN is newer than 9.15 (cuda/sdp_utils.cpp). That
// keeps the same tensors as flash attention, which stands for it here.
int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double, bool causal, std::optional<double>, bool) {
  if (query.dim() == 4) {
    if (flash_fits(query, key, value, mask, causal)) return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
    if (efficient_fits(query, key, value)) return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

// On CUDA, heads are padded to a multiple of 8 before flash attention, and autograd keeps the padded tensors
// (pad_last_dim in transformers/attention.cpp). For other devices LibTorch leaves that step out.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                  bool grouped) {
  constexpr int64_t kMultiple = 8;
  const int64_t width = query.size(-1), missing = (kMultiple - width % kMultiple) % kMultiple;
  const auto flash = static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  if (missing == 0 || choose(query, key, value, mask, dropout, causal, scale, grouped) != flash) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, grouped);
  }
  const auto padded = [&](const at::Tensor& x) { return at::pad(x, {0, missing}); };
  return at::native::scaled_dot_product_attention(padded(query), padded(key), padded(value), mask, dropout, causal,
                                                  scale.value_or(1.0 / std::sqrt(static_cast<double>(width))), grouped)
      .narrow(-1, 0, width);
}

}  // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  for (const c10::DispatchKey key : {c10::DispatchKey::PrivateUse1, c10::DispatchKey::AutogradPrivateUse1}) {
    kept_library("aten", key).impl("scaled_dot_product_attention", &attend);
  }
}

std::vector<std::string> planned_operators(const std::vector<std::string>& names) {
  static const std::set<std::string> replaced = {"aten::_scaled_dot_product_flash_attention",
                                                 "aten::_scaled_dot_product_cudnn_attention"};
  std::vector<std::string> planned;
  for (const std::string& name : names) {
    if (name != kStandIn) planned.push_back(replaced.count(name) > 0 ? kStandIn : name);
  }
  return planned;
}

}  // namespace fsdp::planner
