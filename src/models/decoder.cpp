#include "models/decoder.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

namespace fsdp::models {
namespace {

constexpr int64_t kIgnoredLabel = -100;

// Position i predicts label i+1; labels move instead of logits, which are far larger.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  at::Tensor targets = at::full_like(labels, kIgnoredLabel, labels.options(), at::MemoryFormat::Contiguous);
  const int64_t predicted = labels.size(1) - 1;
  targets.narrow(1, 0, predicted).copy_(labels.narrow(1, 1, predicted));
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::cross_entropy_loss(wide.view({-1, wide.size(-1)}), targets.view(-1), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options) {
  const at::ScalarType dtype = value.scalar_type();
  const auto input = [&](const at::Tensor& x) { return options.in_full_precision ? x.to(at::toOpMathType(dtype)) : x; };
  const at::Tensor attended = at::scaled_dot_product_attention(input(query), input(key), input(value), /*attn_mask=*/{},
                                                               options.dropout, /*is_causal=*/true, options.scale,
                                                               /*enable_gqa=*/key.size(1) != query.size(1));
  return attended.to(dtype).transpose(1, 2).flatten(2);
}

void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels) {
  TORCH_CHECK(input_ids.dim() == 2, model, ": input_ids must be [batch, sequence], is of shape ", input_ids.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == input_ids.sizes(), model, ": labels are of shape ", labels.sizes(),
              ", input_ids of shape ", input_ids.sizes(), "; they must be the same");
}

CausalLMOutput with_next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return {.loss = labels.defined() ? next_token_loss(logits, labels) : at::Tensor(), .logits = logits};
}

double decoder_flops_per_token(double linear_weights, double layers, double query_size, double sequence_length) {
  return 6 * linear_weights + 12 * layers * query_size * sequence_length;
}

}  // namespace fsdp::models
