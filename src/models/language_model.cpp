#include "models/language_model.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "models/fused_cross_entropy.h"
#include "models/loss.h"

namespace fsdp::models {

std::pair<int64_t, int64_t> LanguageModel::own_groups(int64_t groups) const {
  if (!split_) return {0, groups};
  const int64_t each = groups / split_->ranks, larger = groups % split_->ranks;
  return {split_->rank * each + std::min<int64_t>(split_->rank, larger), each + (split_->rank < larger ? 1 : 0)};
}

LanguageModelOutput LanguageModel::predict(Linear& head, const at::Tensor& hidden_states, const at::Tensor& labels,
                                           const LogitScaling& scaling) const {
  if (labels.defined() && fused_loss_) {
    TORCH_CHECK(!split_, "fused loss: the head of ", name(),
                " is split over ranks, and the fused loss multiplies by all of it; use the plain loss");
    TORCH_CHECK(!head->bias.defined() && !head->lora_a.defined(), "fused loss: the head of ", name(),
                " has a bias or a low-rank adapter, and the fused loss knows only "
                "its weight; use the plain loss, or leave the head without an adapter");
    return {.loss = fused_cross_entropy(hidden_states, head->weight, labels, /*chunk_tokens=*/0, scaling),
            .logits = {}};
  }
  const at::Tensor logits = scaling.apply(head(hidden_states));
  if (split_ && labels.defined()) {
    return {.loss = split_->classes.mean_cross_entropy(logits, labels, kIgnoredLabel), .logits = {}};
  }
  if (split_) return {.loss = {}, .logits = split_->classes.gather(logits)};
  return {.loss = labels.defined() ? mean_cross_entropy(logits, labels) : at::Tensor(), .logits = logits};
}

}  // namespace fsdp::models
