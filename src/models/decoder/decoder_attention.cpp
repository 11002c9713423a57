#include "models/decoder/decoder_attention.h"

#include <utility>
#include <vector>

namespace fsdp::models {

DecoderAttentionImpl::DecoderAttentionImpl(const DecoderConfig& config, const DecoderLayerConfig& layer,
                                           const at::TensorOptions& options)
    : head_dim_(config.head_dim),
      query_size_(config.num_attention_heads * config.head_dim),
      key_size_(config.num_key_value_heads * config.head_dim),
      query_key_norm_(config.query_key_norm),
      limit_(config.projection_limit),
      attention_{.dropout = config.attention_dropout,
                 .scale = config.attention_scale,
                 .window = layer.window,
                 .softcap = config.attention_softcap} {
  const auto projection = [&](const char* name, int64_t size) {
    return register_module(name, Linear(config.hidden_size, size, config.query_key_value_bias, options));
  };
  if (config.fused_query_key_value) {
    qkv_proj_ = projection("qkv_proj", query_size_ + 2 * key_size_);
  } else {
    q_proj_ = projection("q_proj", query_size_);
    k_proj_ = projection("k_proj", key_size_);
    v_proj_ = projection("v_proj", key_size_);
  }
  o_proj_ = register_module("o_proj", Linear(query_size_, config.hidden_size, config.output_bias, options));
  if (query_key_norm_ == QueryKeyNorm::kNone) return;
  const auto norm = [&](const char* name, int64_t projected) {
    const int64_t size = query_key_norm_ == QueryKeyNorm::kHead ? head_dim_ : projected;
    return register_module(name, RMSNorm(size, config.norm_eps, options, config.norm_kind));
  };
  q_norm_ = norm("q_norm", query_size_);
  k_norm_ = norm("k_norm", key_size_);
}

DecoderAttentionImpl::Heads DecoderAttentionImpl::project(const at::Tensor& hidden_states,
                                                          const RotaryFactors& rotary) {
  const auto rotated = [&](const at::Tensor& x) { return rotary.cos.defined() ? apply_rotary(x, rotary) : x; };
  if (qkv_proj_) {
    const at::Tensor projected = qkv_proj_(hidden_states);
    const std::vector<at::Tensor> parts = projected.split_with_sizes(sizes_of(projected.size(-1)), -1);
    return {rotated(heads(parts[0], q_norm_)), rotated(heads(parts[1], k_norm_)), heads(parts[2], no_norm_)};
  }
  // One after the other: each projection is freed as soon as it is rotated.
  at::Tensor query = rotated(heads(q_proj_(hidden_states), q_norm_));
  at::Tensor key = rotated(heads(k_proj_(hidden_states), k_norm_));
  return {std::move(query), std::move(key), heads(v_proj_(hidden_states), no_norm_)};
}

// With tensor parallelism, a rank has a part of the heads, but as many heads of queries for each of keys.
std::vector<int64_t> DecoderAttentionImpl::sizes_of(int64_t projected) const {
  const int64_t all = query_size_ + 2 * key_size_;
  return {projected * query_size_ / all, projected * key_size_ / all, projected * key_size_ / all};
}

at::Tensor DecoderAttentionImpl::heads(const at::Tensor& projection, RMSNorm& norm) const {
  const auto limited = [&](const at::Tensor& x) { return limit_ ? x.clamp(-*limit_, *limit_) : x; };
  if (!norm) return split_heads(limited(projection), head_dim_);
  if (query_key_norm_ == QueryKeyNorm::kProjection) return split_heads(limited(norm(projection)), head_dim_);
  return limited(norm(projection.unflatten(-1, {-1, head_dim_}))).transpose(1, 2);
}

at::Tensor DecoderAttentionImpl::forward(const at::Tensor& hidden_states, const RotaryFactors& rotary,
                                         const Documents& documents) {
  const auto [query, key, value] = project(hidden_states, rotary);
  AttentionOptions options = attention_;
  if (!is_training()) options.dropout = 0.0;
  return o_proj_(causal_attention(query, key, value, options, documents));
}

}  // namespace fsdp::models
