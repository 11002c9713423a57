#include "training/recomputed_work.h"

#include <c10/util/Exception.h>

#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/seq2seq_lm.h"

namespace fsdp::trainer {

double recomputed_flops_of_sample(const models::PretrainedModel& model, const Batch& batch) {
  if (const auto* causal = dynamic_cast<const models::CausalLM*>(&model)) {
    const int64_t length = batch.inputs.size(1);
    return static_cast<double>(length) * causal->recomputed_flops_per_token(length);
  }
  if (const auto* seq2seq = dynamic_cast<const models::Seq2SeqLM*>(&model)) {
    return seq2seq->recomputed_flops_per_sample(batch.inputs.size(1), batch.labels.size(1));
  }
  const auto* images = dynamic_cast<const models::ImageClassifier*>(&model);
  TORCH_CHECK(images, "what the model ", model.name(), " recomputes in a step is not known");
  return images->recomputed_flops_per_image(batch.inputs.size(2), batch.inputs.size(3));
}

}  // namespace fsdp::trainer
