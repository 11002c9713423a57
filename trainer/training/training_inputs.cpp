#include "training/training_inputs.h"

#include <c10/util/Exception.h>

#include "config/errors.h"
#include "data/batches.h"
#include "models/pretrained.h"
#include "training/checkpoint_policy.h"
#include "training/model_io.h"
#include "training/sharding_options.h"

namespace fsdp::trainer {

namespace {

std::shared_ptr<models::CausalLM> open_model(const Config& config, const checkpoint::HfFolder& folder) {
  auto model = models::make_causal_lm(folder.config(), scalar_type(config.master_dtype), c10::Device(c10::kMeta));
  sharding_options(config, *model, /*communicator=*/nullptr);
  model->set_activation_checkpointing(checkpoint_policy(config));
  if (config.max_seq_length > model->max_sequence_length()) {
    throw ConfigError(c10::str("key \"max_seq_length\": ", config.max_seq_length, " is more than the model in ",
                               config.model_path, " can attend to; accepted: 2 to ", model->max_sequence_length()));
  }
  return model;
}

}  // namespace

std::filesystem::path final_folder(const Config& config) { return std::filesystem::path(config.output_dir) / "final"; }

TrainingInputs open_training_inputs(const Config& config, int64_t world_size) {
  checkpoint::HfFolder folder(config.model_path);
  auto model = open_model(config, folder);
  models::PretrainedWeights weights(std::move(folder), *model);
  const auto open = [&](const std::string& spec, DatasetRole role) {
    return open_dataset(spec, role, config.max_seq_length, model->vocab_size(), static_cast<uint64_t>(config.seed));
  };
  Dataset train = open(config.dataset, DatasetRole::kTrain);
  GlobalBatch{config.train_batch_size, world_size, config.gradient_accumulation_steps}.check_fits(train);
  std::optional<Dataset> eval;
  if (config.do_eval) eval = open(config.eval_dataset.value(), DatasetRole::kEval);
  if (config.save_final) check_can_save(final_folder(config));
  return {std::move(weights), std::move(model), std::move(train), std::move(eval)};
}

}  // namespace fsdp::trainer
