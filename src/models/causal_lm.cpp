#include "models/causal_lm.h"

#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>

#include "models/loss.h"

namespace fsdp::models {

std::vector<TensorParallelRule> CausalLM::tensor_parallel_plan() const {
  TORCH_CHECK(false, "tensor parallelism: ", name(), " has no plan: override CausalLM::tensor_parallel_plan");
}

void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels) {
  TORCH_CHECK(input_ids.dim() == 2, model, ": input_ids must be [batch, sequence], is of shape ", input_ids.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == input_ids.sizes(), model, ": labels are of shape ", labels.sizes(),
              ", input_ids of shape ", input_ids.sizes(), "; they must be the same");
}

// Shifts the labels instead of the logits, which are far larger.
at::Tensor next_token_labels(const at::Tensor& labels) {
  if (!labels.defined()) return labels;
  at::Tensor shifted = at::full_like(labels, kIgnoredLabel, labels.options(), at::MemoryFormat::Contiguous);
  const int64_t predicted = labels.size(1) - 1;
  shifted.narrow(1, 0, predicted).copy_(labels.narrow(1, 1, predicted));
  return shifted;
}

}  // namespace fsdp::models
