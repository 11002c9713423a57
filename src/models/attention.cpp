#include "models/attention.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace fsdp::models {
namespace {

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& bias,
                     bool is_causal, const AttentionOptions& options) {
  const at::ScalarType dtype = value.scalar_type();
  const auto input = [&](const at::Tensor& x) { return options.in_full_precision ? x.to(at::toOpMathType(dtype)) : x; };
  const std::optional<at::Tensor> mask = bias.defined() ? std::optional(input(bias)) : std::nullopt;
  const at::Tensor attended = at::scaled_dot_product_attention(input(query), input(key), input(value), mask,
                                                               options.dropout, is_causal, options.scale,
                                                               /*enable_gqa=*/key.size(1) != query.size(1));
  return attended.to(dtype).transpose(1, 2).flatten(2);
}

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options) {
  return attention(query, key, value, /*bias=*/{}, /*is_causal=*/true, options);
}

at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias, const AttentionOptions& options) {
  return attention(query, key, value, bias, /*is_causal=*/false, options);
}

}  // namespace fsdp::models
