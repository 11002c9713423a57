#include "setup/training_inputs.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "config/errors.h"
#include "data/batches.h"
#include "fsdp/deferred_init.h"
#include "models/presets.h"
#include "models/registry.h"
#include "saving/checkpoint_policy.h"
#include "setup/model_io.h"
#include "setup/sharding_options.h"

namespace fsdp::trainer {

namespace {

using models::PretrainedModel;

nlohmann::json config_of(const nlohmann::json& model) {
  return model.is_string() ? models::find_preset(model.get<std::string>()).config : model;
}

at::TensorOptions parameter_options(const PrecisionConfig& precision, c10::Device device) {
  return at::TensorOptions().dtype(precision.master_dtype).device(device);
}

struct OpenedModel {
  nlohmann::json config;
  std::shared_ptr<PretrainedModel> model;
  std::optional<models::PretrainedWeights> weights = std::nullopt;
};

OpenedModel open_pretrained(const Config& config) {
  formats::HfFolder folder(*config.model.path);
  OpenedModel opened{.config = models::with_class_of_model(folder.config()),
                     .model = models::make_uninitialized<PretrainedModel>(
                         folder.config(), parameter_options(config.precision, c10::kMeta))};
  opened.weights.emplace(std::move(folder), *opened.model);
  return opened;
}

// Records how the weights are initialized: on the CPU, so that they do not depend on the device.
OpenedModel begin_anew(const Config& config) {
  OpenedModel opened;
  try {
    opened.config = config_of(*config.model.definition);
    at::manual_seed(static_cast<uint64_t>(config.steps.seed));
    opened.model = deferred_init([&] {
      auto model =
          models::make_uninitialized<PretrainedModel>(opened.config, parameter_options(config.precision, c10::kCPU));
      model->initialize();
      return model;
    });
  } catch (const c10::Error& error) {
    throw ConfigError(c10::str("key \"model\": ", error.what_without_backtrace()));
  }
  return opened;
}

}  // namespace

std::filesystem::path final_folder(const OutputConfig& output) {
  return std::filesystem::path(output.output_dir) / "final";
}

TrainingInputs open_training_inputs(const Config& config, int64_t world_size) {
  OpenedModel opened = config.model.path ? open_pretrained(config) : begin_anew(config);
  sharding_options(config, *opened.model, /*communicator=*/nullptr);
  opened.model->set_activation_checkpointing(checkpoint_policy(config.model));
  TrainingInputs inputs{.model_config = std::move(opened.config),
                        .weights = std::move(opened.weights),
                        .model = make_trained_model(opened.model, config),
                        .train = nullptr,
                        .eval = nullptr};
  const auto open = [&](const std::string& text, DatasetRole role) {
    return inputs.model->open_dataset({.text = text, .role = role, .seed = static_cast<uint64_t>(config.steps.seed)});
  };
  inputs.train = open(config.data.dataset, DatasetRole::kTrain);
  GlobalBatch{config.data.train_batch_size, world_size, config.steps.gradient_accumulation_steps}.check_fits(
      *inputs.train);
  if (config.output.do_eval) inputs.eval = open(config.data.eval_dataset.value(), DatasetRole::kEval);
  if (config.output.save_final) check_can_save(final_folder(config.output));
  return inputs;
}

}  // namespace fsdp::trainer
