// Code shared by the kinds of trained models.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "config/config.h"
#include "tasks/trained_model.h"

namespace fsdp::trainer {

// Stores the model of a kind under its own type.
template <typename Model>
class TrainedKind : public TrainedModel {
 public:
  explicit TrainedKind(std::shared_ptr<Model> model) : model_(std::move(model)) {}
  models::PretrainedModel& module() const override { return *model_; }

 protected:
  Model& model() const { return *model_; }

 private:
  std::shared_ptr<Model> model_;
};

// Throws a ConfigError about the value that `config` has for this key.
[[noreturn]] void refuse_value(const char* key, const Config& config, const std::string& why);
// Throws a ConfigError if a key is set that does not apply to this kind of model. `kind`: such as "an image
// classifier".
void refuse_unless_null(const char* key, const Config& config, const char* kind);
// Throws a ConfigError if a key that is never null does not have its default.
void refuse_unless_default(const char* key, const Config& config, const char* kind);
// Refuses max_seq_length, max_target_length, attn_mask_type and fused_loss unless they have their defaults.
void refuse_keys_of_language_models(const Config& config, const char* kind);
// Refuses sparse_learning_rate and sparse_optimizer unless they have their defaults.
void refuse_keys_of_tables(const Config& config, const char* kind);

}  // namespace fsdp::trainer
