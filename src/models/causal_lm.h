// The interface that the trainer needs from a language model that predicts each token from the tokens before it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "fsdp/tensor_parallel.h"
#include "models/documents.h"
#include "models/language_model.h"

namespace fsdp::models {

class CausalLM : public LanguageModel {
 public:
  using LanguageModel::LanguageModel;

  // input_ids: [batch, sequence] int64. labels: the same shape, or undefined; shifted inside (position i
  // predicts label i+1), -100 is ignored.
  virtual LanguageModelOutput forward(const at::Tensor& input_ids, const at::Tensor& labels = {}) = 0;

  // From now on, forward takes each document of a sequence as if it were alone (documents.h): attention does not reach
  // beyond it, and positions begin anew. A document ends with one of the tokens `ends`, which belongs to it and still
  // predicts the next token, or with its sequence.
  void attend_by_document(std::vector<int64_t> ends) { document_ends_ = std::move(ends); }
  // The tokens with which texts end (eos_token_id of config.json); empty if the config has none.
  const std::vector<int64_t>& end_tokens() const { return end_tokens_; }
  void set_end_tokens(std::vector<int64_t> tokens) { end_tokens_ = std::move(tokens); }
  // Returns the documents of this batch: without attend_by_document, the sequences.
  Documents documents_in(const at::Tensor& input_ids) const;

  virtual int64_t max_sequence_length() const = 0;
  // Floating point operations of the forward and backward of one token at this sequence length, recomputation not
  // counted.
  virtual double flops_per_token(int64_t sequence_length) const = 0;
  // FLOPs of one token that activation checkpointing, as currently set, computes again.
  virtual double recomputed_flops_per_token(int64_t sequence_length) const = 0;

  // How its weights are split over ranks (Options::tensor_parallel), for the modules that it has: those of a stage, if
  // others were dropped. Experts, and norms over all heads, stay whole. Each rank must be able to get a head of keys.
  // Throws if the model draws random numbers in forward (dropout), which would differ between ranks, and by default,
  // because a model of your own has no plan.
  // With split_over, as that says. A model whose heads differ (MPT) needs split_over to know its own.
  virtual std::vector<TensorParallelRule> tensor_parallel_plan() const;

  // Lets the ranks of `group` split the model, and returns what fully_shard needs for it (Options::tensor_parallel).
  // From then on, a rank has the logits of its own classes only, from which forward computes the loss; without labels
  // it gathers them. `splits_sequence`: sequence parallelism; the ranks must divide the sequence. Not collective.
  TensorParallelOptions split_over(const std::shared_ptr<Communicator>& group, bool splits_sequence);

 protected:
  // Adds the rules of the embedding and of "lm_head", as far as the stage has them. `has_head`: also if the embedding
  // is the head.
  void add_vocabulary(const std::string& embedding, bool has_head, std::vector<TensorParallelRule>& rules) const;

 private:
  std::vector<int64_t> end_tokens_, document_ends_;
};

// Builds the model that a Hugging Face config.json describes, with parameters of `dtype` on `device`. On the meta
// device parameters take no memory and must be filled before use. The model's FQNs are the names that transformers
// writes to a folder. Unknown architectures, architectures of another kind (seq2seq_lm.h) and unsupported settings are
// errors that name the key, its value and the accepted values.
std::shared_ptr<CausalLM> make_causal_lm(const nlohmann::json& config, c10::ScalarType dtype, c10::Device device);

// Throws unless input_ids is [batch, sequence] and labels, if defined, have the same shape. `model` is the name used in
// the error.
void check_tokens(const char* model, const at::Tensor& input_ids, const at::Tensor& labels);

// Returns the labels for the positions that predict them: position i gets label i+1, the last position kIgnoredLabel.
// Undefined labels stay undefined.
at::Tensor next_token_labels(const at::Tensor& labels);

}  // namespace fsdp::models
