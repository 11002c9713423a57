#include "models/causal_lm.h"

#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>

#include <utility>

#include "models/loss.h"

namespace fsdp::models {

std::vector<TensorParallelRule> CausalLM::tensor_parallel_plan() const {
  TORCH_CHECK(false, "tensor parallelism: ", name(), " has no plan: override CausalLM::tensor_parallel_plan");
}

TensorParallelOptions CausalLM::split_over(const std::shared_ptr<Communicator>& group, bool splits_sequence) {
  SplitActivations activations{group->rank(), group->size(), SplitClasses(group, vocab_size())};
  if (splits_sequence) activations.positions.emplace(group, /*dim=*/0);
  set_split(std::move(activations));
  TensorParallelOptions options{group, tensor_parallel_plan()};
  if (splits_sequence) options.sequence_dim = 1;
  return options;
}

void CausalLM::add_vocabulary(const std::string& embedding, bool has_head,
                              std::vector<TensorParallelRule>& rules) const {
  const auto modules = named_modules();
  const SplitStyle head = is_split() ? SplitStyle::kColwise : SplitStyle::kColwiseGathered;
  // The last stage of a pipeline keeps the embedding as its head.
  const bool is_head = has_head && !modules.contains("lm_head");
  if (modules.contains(embedding)) rules.push_back({embedding, is_head ? head : SplitStyle::kVocabulary});
  if (modules.contains("lm_head")) rules.push_back({"lm_head", head});
}

Documents CausalLM::documents_in(const at::Tensor& input_ids) const {
  return document_ends_.empty() ? Documents() : Documents::ending_with(document_ends_, input_ids);
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
