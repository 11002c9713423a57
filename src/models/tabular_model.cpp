#include "models/tabular_model.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::models {

void TabularModel::set_embedding(std::shared_ptr<FeatureEmbedding> embedding) {
  TORCH_CHECK(!embedding_, name(), ": the model has an embedding already");
  const EmbeddingTables wanted = tables();
  TORCH_CHECK(embedding && embedding->tables().rows == wanted.rows && embedding->tables().width == wanted.width, name(),
              ": the embedding does not have the config's tables");
  embedding_ = register_module("embedding", std::move(embedding));
}

at::Tensor TabularModel::look_up(const at::Tensor& categorical) const {
  TORCH_CHECK(embedding_, name(), ": the model has no embedding tables yet; call set_embedding before forward");
  return embedding_->forward(categorical);
}

TabularOutput with_binary_loss(const at::Tensor& logits, const at::Tensor& labels) {
  if (!labels.defined()) return {.loss = {}, .logits = logits};
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return {.loss = at::binary_cross_entropy_with_logits(wide, labels.to(wide.scalar_type())), .logits = logits};
}

}  // namespace fsdp::models
