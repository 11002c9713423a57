#include "tasks/trained_model.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "data/image_dataset.h"
#include "data/token_dataset.h"
#include "models/causal_lm.h"
#include "models/image_classifier.h"
#include "models/seq2seq_lm.h"
#include "tasks/trained_kind.h"
#include "tasks/trained_tabular_model.h"

namespace fsdp::trainer {

namespace {

// Height and width of dummy images for a model that accepts any size.
constexpr int64_t kAnyImageSize = 224;

class TrainedCausalLM : public TrainedKind<models::CausalLM> {
 public:
  TrainedCausalLM(std::shared_ptr<models::CausalLM> model, const Config& config)
      : TrainedKind(std::move(model)), length_(config.data.max_seq_length) {
    refuse_unless_null("max_target_length", config, "a causal language model");
    refuse_unless_null("image_size", config, "a causal language model");
    refuse_keys_of_tables(config, "a causal language model");
    this->model().set_fused_loss(config.model.fused_loss);
    if (config.model.attention_mask == AttentionMask::kBlockCausal) attend_by_document(config);
    const int64_t most = this->model().max_sequence_length();
    if (length_ <= most) return;
    refuse_value("max_seq_length", config, c10::str("is more than the model can attend to; accepted: 2 to ", most));
  }

  std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const override {
    return std::make_unique<TokenDataset>(open_tokens(spec, length_, model().vocab_size()), length_);
  }
  at::Tensor loss(const Batch& batch) const override { return model().forward(batch.inputs, batch.labels).loss; }
  models::StagedLM* staged() const override { return dynamic_cast<models::StagedLM*>(&model()); }
  SampleWork sample_work(const Batch& /*batch*/) const override {
    const auto tokens = static_cast<double>(length_);
    return {.tokens = length_,
            .flops = tokens * model().flops_per_token(length_),
            .recomputed_flops = tokens * model().recomputed_flops_per_token(length_)};
  }

 private:
  void attend_by_document(const Config& config) {
    if (model().end_tokens().empty()) {
      refuse_value("attn_mask_type", config,
                   "needs the token with which documents end: add \"eos_token_id\" to the model's config.json");
    }
    model().attend_by_document(model().end_tokens());
  }

  int64_t length_;
};

class TrainedSeq2SeqLM : public TrainedKind<models::Seq2SeqLM> {
 public:
  TrainedSeq2SeqLM(std::shared_ptr<models::Seq2SeqLM> model, const Config& config)
      : TrainedKind(std::move(model)),
        lengths_{config.data.max_seq_length, config.data.max_target_length.value_or(config.data.max_seq_length)} {
    refuse_unless_null("image_size", config, "a sequence-to-sequence language model");
    refuse_keys_of_tables(config, "a sequence-to-sequence language model");
    refuse_unless_default("attn_mask_type", config, "a sequence-to-sequence language model");
    this->model().set_fused_loss(config.model.fused_loss);
  }

  std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const override {
    // All tokens of dummy data are predicted.
    const std::optional<int64_t> padding = spec.is_dummy() ? std::nullopt : std::optional(model().pad_token_id());
    auto tokens = open_tokens(spec, lengths_.source + lengths_.target, model().vocab_size());
    return std::make_unique<TokenPairDataset>(std::move(tokens), lengths_, padding);
  }
  at::Tensor loss(const Batch& batch) const override {
    return model().forward(batch.inputs, batch.labels, batch.attention_mask).loss;
  }
  SampleWork sample_work(const Batch& /*batch*/) const override {
    return {.tokens = lengths_.source + lengths_.target,
            .flops = model().flops_per_sample(lengths_.source, lengths_.target),
            .recomputed_flops = model().recomputed_flops_per_sample(lengths_.source, lengths_.target)};
  }

 private:
  TokenPairDataset::Lengths lengths_;
};

class TrainedImageClassifier : public TrainedKind<models::ImageClassifier> {
 public:
  TrainedImageClassifier(std::shared_ptr<models::ImageClassifier> model, const Config& config)
      : TrainedKind(std::move(model)), size_(config.data.image_size) {
    refuse_keys_of_language_models(config, "an image classifier");
    refuse_keys_of_tables(config, "an image classifier");
    const std::optional<int64_t> only = this->model().image_size();
    if (size_ && only && *size_ != *only)
      refuse_value("image_size", config, c10::str("is not the model's; accepted: ", *only));
  }

  std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const override {
    const int64_t channels = model().channels(), classes = model().num_classes();
    const std::optional<int64_t> size = size_ ? size_ : model().image_size();
    if (!spec.is_dummy()) return open_image_file(spec.text, channels, size.value_or(0), classes);
    const int64_t side = size.value_or(kAnyImageSize);
    return make_dummy_images(spec, {channels, side, side}, classes);
  }
  at::Tensor loss(const Batch& batch) const override { return model().forward(batch.inputs, batch.labels).loss; }
  SampleWork sample_work(const Batch& batch) const override {
    const int64_t height = batch.inputs.size(2), width = batch.inputs.size(3);
    return {.flops = model().flops_per_image(height, width),
            .recomputed_flops = model().recomputed_flops_per_image(height, width)};
  }

 private:
  std::optional<int64_t> size_;
};

}  // namespace

std::unique_ptr<TrainedModel> make_trained_model(const std::shared_ptr<models::PretrainedModel>& model,
                                                 const Config& config) {
  if (auto causal = std::dynamic_pointer_cast<models::CausalLM>(model)) {
    return std::make_unique<TrainedCausalLM>(std::move(causal), config);
  }
  if (auto seq2seq = std::dynamic_pointer_cast<models::Seq2SeqLM>(model)) {
    return std::make_unique<TrainedSeq2SeqLM>(std::move(seq2seq), config);
  }
  if (auto tabular = std::dynamic_pointer_cast<models::TabularModel>(model)) {
    return std::make_unique<TrainedTabularModel>(std::move(tabular), config);
  }
  auto images = std::dynamic_pointer_cast<models::ImageClassifier>(model);
  TORCH_CHECK(images, "the model ", model->name(), " is of a kind that the trainer does not train");
  return std::make_unique<TrainedImageClassifier>(std::move(images), config);
}

}  // namespace fsdp::trainer
