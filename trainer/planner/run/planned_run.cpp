#include "planner/run/planned_run.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include <filesystem>
#include <utility>

#include "config/errors.h"
#include "config/parallel_degrees.h"
#include "formats/common/json_text.h"
#include "loop/make_passes.h"
#include "loop/step_trace.h"
#include "models/documents.h"
#include "models/presets.h"
#include "models/registry.h"
#include "planner/device/attention.h"
#include "planner/device/matmul_workspaces.h"
#include "planner/device/planned_device.h"
#include "planner/device/planned_memory.h"
#include "saving/checkpoint_policy.h"
#include "setup/distinct_parameters.h"
#include "setup/split_model.h"

namespace fsdp::planner {
namespace {

using trainer::Config;

// Samples for this many steps, so that an epoch does not end within the plan.
constexpr int64_t kGlobalBatches = 4;

// The weights of a folder are not needed, and may be missing.
nlohmann::json model_config(const Config& config) {
  if (config.model.path) return formats::read_json_file(std::filesystem::path(*config.model.path) / "config.json");
  const nlohmann::json& model = *config.model.definition;
  return model.is_string() ? models::find_preset(model.get<std::string>()).config : model;
}

// What is kept from forward, by the names of the planned device.
trainer::ModelConfig checkpointing(const Config& config, const PlanTarget& target) {
  // All names must be ones that `fsdp train` accepts.
  static_cast<void>(trainer::checkpoint_policy(config.model));
  trainer::ModelConfig model = config.model;
  if (target.has_device) {
    model.activation_checkpointing_save_ops = planned_operators(model.activation_checkpointing_save_ops);
  }
  return model;
}

// Without values, whether weights come from a folder or are drawn: neither takes part in a step.
std::unique_ptr<trainer::TrainedModel> make_model(const Config& config, const nlohmann::json& definition,
                                                  const PlanTarget& target) {
  const auto options = at::TensorOptions().dtype(config.precision.master_dtype).device(c10::kMeta);
  auto model = models::make_uninitialized<models::PretrainedModel>(definition, options);
  if (dynamic_cast<const models::TabularModel*>(model.get()) != nullptr) {
    throw trainer::ConfigError(c10::str("a model of type \"", definition.at("model_type").get<std::string>(),
                                        "\" cannot be planned: its tables have the sizes that its data give, and its "
                                        "rows lie on other ranks; `fsdp train` checks its memory before it starts"));
  }
  model->set_activation_checkpointing(trainer::checkpoint_policy(checkpointing(config, target)));
  return trainer::make_trained_model(model, config);
}

// Data sets write their samples into host memory.
class DataInRealMemory final : public trainer::Dataset {
 public:
  explicit DataInRealMemory(std::unique_ptr<trainer::Dataset> data) : data_(std::move(data)) {}
  std::string name() const override { return data_->name(); }
  int64_t size() const override { return data_->size(); }
  std::string sample_text() const override { return data_->sample_text(); }
  trainer::Batch batch(const std::vector<int64_t>& indices) const override {
    const PlannedMemory::RealHostMemory real;
    return data_->batch(indices);
  }
  std::string remark() const override { return data_->remark(); }
  int64_t predictions(int64_t index) const override { return data_->predictions(index); }

 private:
  std::unique_ptr<trainer::Dataset> data_;
};

trainer::GlobalBatch global_batch(const Config& config, const PlanTarget& target) {
  return {config.data.train_batch_size, trainer::parallel_degrees(config, target.layout.world).data,
          config.steps.gradient_accumulation_steps};
}

HostLinks links_of(const Config& config, const PlanTarget& target) {
  if (target.has_device) return HostLinks::kNone;
  return config.communication.backend == "gloo" ? HostLinks::kGloo : HostLinks::kMemory;
}

}  // namespace

PlannedRun::PlannedRun(const Config& config, const PlanTarget& target)
    : config_(config), device_(target.has_device ? planned_device() : c10::Device(c10::kCPU)) {
  models::assume_document_length(target.document_tokens);
  open(target);
  if (target.threads > 0) at::set_num_threads(target.threads);
  begin_planning();
  MatmulWorkspaces::get().reset(target.has_device ? target.matmul_workspace : 0);
  if (target.notes_accesses) tape_.note_accesses();
  PlannedMemory::get().set_log(&tape_);
  at::manual_seed(static_cast<uint64_t>(config_.steps.seed));
  shard(target);
  const trainer::TrainBatches::Options of_rank{
      .global = global_batch(config_, target), .rank = groups_.data->rank(), .shuffle = false, .device = device_};
  batches_ = std::make_unique<trainer::TrainBatches>(*inputs_.train, of_rank);
  passes_ = trainer::make_passes(config_.steps, inputs_, groups_, parts_, parameter_names_);
  run_ = std::make_unique<trainer::TrainingRun>(config_, *passes_, inputs_.model->separate_parameters(), *batches_);
  step_bounds_.push_back(tape_.entries().size());
}

// The model still is whole.
void PlannedRun::open(const PlanTarget& target) {
  inputs_.model_config = model_config(config_);
  model_type_ = inputs_.model_config.at("model_type").get<std::string>();
  vocabulary_ = inputs_.model_config.value("vocab_size", int64_t{0});
  inputs_.model = make_model(config_, inputs_.model_config, target);
  const trainer::TrainedModel& model = *inputs_.model;
  parameters_ = trainer::parameter_count(model.module());
  parameter_names_ = trainer::parameter_names(model.module());
  inputs_.pipeline = trainer::pipeline_layout(config_, model);
  for (int i = 1; inputs_.pipeline && i < inputs_.pipeline->stages_per_rank(); ++i) {
    inputs_.more_models.push_back(make_model(config_, inputs_.model_config, target));
  }
  if (config_.parallelism.tensor_degree > 1) trainer::check_can_be_split(config_, model);
  const int64_t samples = kGlobalBatches * global_batch(config_, target).samples();
  inputs_.train = std::make_unique<DataInRealMemory>(model.open_dataset({.text = c10::str("dummy:", samples)}));
  sample_work_ = model.sample_work(inputs_.train->batch({0}));
}

PlannedRun::~PlannedRun() {
  PlannedMemory::get().set_log(nullptr);
  MatmulWorkspaces::get().reset(0);
}

void PlannedRun::shard(const PlanTarget& target) {
  RankLayout layout = target.layout;
  layout.links = links_of(config_, target);
  groups_ = trainer::make_rank_groups(config_, make_planned_communicator(tape_, target.rank, layout));
  // Values could come from a checkpoint as well.
  parts_ = trainer::shard_parts(config_, inputs_, groups_, device_, /*from_checkpoint=*/true);
  for (torch::nn::Module* module : trainer::modules_of(parts_)) module->train();
}

void PlannedRun::trace() {
  tape_.note_times();
  for (ShardedModule* part : trainer::sharded_of(parts_)) part->tracing().start();
}

Trace PlannedRun::stop_trace() { return trainer::stop_tracing(trainer::sharded_of(parts_)); }

int64_t PlannedRun::units() const {
  int64_t units = 0;
  for (const trainer::ShardedPart& part : parts_) units += part.sharded->diagnostics().stats().units;
  return units;
}

void PlannedRun::step() {
  run_->step();
  step_bounds_.push_back(tape_.entries().size());
  StepMemory memory{trainer::memory_of(parts_)};
  for (MemoryCategory& category : run_->memory()) memory.categories.push_back(std::move(category));
  memory_.push_back(std::move(memory));
}

}  // namespace fsdp::planner
