#include "models/causal_lm.h"

#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>

#include "models/loss.h"

namespace fsdp::models {
namespace {

// Labels move instead of logits, which are far larger.
at::Tensor shifted_left(const at::Tensor& labels) {
  at::Tensor shifted = at::full_like(labels, kIgnoredLabel, labels.options(), at::MemoryFormat::Contiguous);
  const int64_t predicted = labels.size(1) - 1;
  shifted.narrow(1, 0, predicted).copy_(labels.narrow(1, 1, predicted));
  return shifted;
}

}  // namespace

void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels) {
  TORCH_CHECK(input_ids.dim() == 2, model, ": input_ids must be [batch, sequence], is of shape ", input_ids.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == input_ids.sizes(), model, ": labels are of shape ", labels.sizes(),
              ", input_ids of shape ", input_ids.sizes(), "; they must be the same");
}

LanguageModelOutput with_next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return {.loss = labels.defined() ? mean_cross_entropy(logits, shifted_left(labels)) : at::Tensor(), .logits = logits};
}

}  // namespace fsdp::models
