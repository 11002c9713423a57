#include "setup/training_inputs.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "data/batches.h"
#include "fsdp/deferred_init.h"
#include "models/presets.h"
#include "models/registry.h"
#include "saving/checkpoint_policy.h"
#include "setup/model_io.h"
#include "setup/sharding_options.h"
#include "setup/split_model.h"

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

std::shared_ptr<PretrainedModel> without_memory(const formats::HfFolder& folder, const Config& config) {
  return models::make_uninitialized<PretrainedModel>(folder.config(), parameter_options(config.precision, c10::kMeta));
}

OpenedModel open_pretrained(const Config& config) {
  formats::HfFolder folder(*config.model.path);
  OpenedModel opened{.config = models::with_class_of_model(folder.config()), .model = without_memory(folder, config)};
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

std::unique_ptr<TrainedModel> trained_model(const std::shared_ptr<PretrainedModel>& model, const Config& config) {
  model->set_activation_checkpointing(checkpoint_policy(config.model));
  return make_trained_model(model, config);
}

// All copies record the same initial values, because each seeds the generators.
void open_more_models(const Config& config, const PipelineLayout& pipeline, TrainingInputs& inputs) {
  for (int i = 1; i < pipeline.stages_per_rank(); ++i) {
    const auto model = inputs.weights ? without_memory(inputs.weights->folder(), config) : begin_anew(config).model;
    inputs.more_models.push_back(trained_model(model, config));
  }
}

}  // namespace

std::filesystem::path final_folder(const OutputConfig& output) {
  return std::filesystem::path(output.output_dir) / "final";
}

TrainingInputs open_training_inputs(const Config& config, int64_t world_size) {
  OpenedModel opened = config.model.path ? open_pretrained(config) : begin_anew(config);
  sharding_options(config, *opened.model, /*communicator=*/nullptr);
  TrainingInputs inputs{.model_config = std::move(opened.config),
                        .weights = std::move(opened.weights),
                        .model = trained_model(opened.model, config),
                        .train = nullptr,
                        .eval = nullptr};
  inputs.pipeline = pipeline_layout(config, *inputs.model);
  if (config.parallelism.tensor_degree > 1) check_can_be_split(config, *inputs.model);
  if (inputs.pipeline) open_more_models(config, *inputs.pipeline, inputs);
  const auto open = [&](const std::string& text, DatasetRole role) {
    return inputs.model->open_dataset({.text = text, .role = role, .seed = static_cast<uint64_t>(config.steps.seed)});
  };
  inputs.train = open(config.data.dataset, DatasetRole::kTrain);
  GlobalBatch{config.data.train_batch_size, parallel_degrees(config, world_size).data,
              config.steps.gradient_accumulation_steps}
      .check_fits(*inputs.train);
  if (config.output.do_eval) inputs.eval = open(config.data.eval_dataset.value(), DatasetRole::kEval);
  if (config.output.save_final) check_can_save(final_folder(config.output));
  return inputs;
}

}  // namespace fsdp::trainer
