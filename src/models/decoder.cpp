#include "models/decoder.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

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

// Labels move instead of logits, which are far larger.
at::Tensor shifted_left(const at::Tensor& labels) {
  at::Tensor shifted = at::full_like(labels, kIgnoredLabel, labels.options(), at::MemoryFormat::Contiguous);
  const int64_t predicted = labels.size(1) - 1;
  shifted.narrow(1, 0, predicted).copy_(labels.narrow(1, 1, predicted));
  return shifted;
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

void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels) {
  TORCH_CHECK(input_ids.dim() == 2, model, ": input_ids must be [batch, sequence], is of shape ", input_ids.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == input_ids.sizes(), model, ": labels are of shape ", labels.sizes(),
              ", input_ids of shape ", input_ids.sizes(), "; they must be the same");
}

at::Tensor token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.view({-1, wide.size(-1)}), labels.reshape(-1), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

LanguageModelOutput with_next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return {.loss = labels.defined() ? token_loss(logits, shifted_left(labels)) : at::Tensor(), .logits = logits};
}

double linear_flops(double weights, double tokens) { return 6 * weights * tokens; }

double attention_flops(double size, double queries, double keys) { return 12 * size * queries * keys; }

double decoder_flops_per_token(double linear_weights, double layers, double query_size, double sequence_length) {
  return linear_flops(linear_weights, 1) + layers * attention_flops(query_size, 1, sequence_length);
}

}  // namespace fsdp::models
