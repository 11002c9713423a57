// What the kinds of trained models have in common.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "config/config.h"
#include "training/trained_model.h"

namespace fsdp::trainer {

// The kinds hold their model under its own type.
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

// A ConfigError about the value that `config` has for this key.
[[noreturn]] void refuse_value(const char* key, const Config& config, const std::string& why);
// The same where a key is set that the kind of the model has no use for. `kind`: "an image classifier".
void refuse_unless_null(const char* key, const Config& config, const char* kind);
// max_seq_length, max_target_length and fused_loss.
void refuse_keys_of_language_models(const Config& config, const char* kind);
// sparse_learning_rate and sparse_optimizer.
void refuse_keys_of_tables(const Config& config, const char* kind);

}  // namespace fsdp::trainer
