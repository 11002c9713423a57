#include "planner/device/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <optional>

namespace fsdp::planner {
namespace {

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

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double, bool causal, std::optional<double>, bool) {
  if (query.dim() == 4) {
    if (flash_fits(query, key, value, mask, causal)) return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
    if (efficient_fits(query, key, value)) return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace

void register_attention() { at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose); }

}  // namespace fsdp::planner
