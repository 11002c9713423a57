// Language models with an encoder, which reads a source, and a decoder, which predicts each token of a target from the
// source and the preceding target tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "models/language_model.h"

namespace fsdp::models {

class Seq2SeqLM : public LanguageModel {
 public:
  using LanguageModel::LanguageModel;

  // input_ids: [batch, source] int64. labels: [batch, target] int64; position i of the decoder predicts label i. The
  // decoder reads the labels shifted right, after the model's start token. Label -100 is ignored by the loss and read
  // as padding. attention_mask: [batch, source], false or 0 where input_ids are padding; undefined means no padding.
  // Logits are [batch, target, vocabulary].
  virtual LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels,
                                      const at::Tensor& attention_mask = {}) = 0;

  // The token that pads sources and targets to the same length.
  virtual int64_t pad_token_id() const = 0;
  // Floating point operations of the forward and backward of one sample with these lengths, recomputation not counted.
  virtual double flops_per_sample(int64_t source_length, int64_t target_length) const = 0;
  // FLOPs of one sample that activation checkpointing, as currently set, computes again.
  virtual double recomputed_flops_per_sample(int64_t source_length, int64_t target_length) const = 0;
};

// As make_causal_lm, for sequence-to-sequence models.
std::shared_ptr<Seq2SeqLM> make_seq2seq_lm(const nlohmann::json& config, c10::ScalarType dtype, c10::Device device);

}  // namespace fsdp::models
