#include "setup/sharded_parts.h"

#include <c10/util/Exception.h>

#include <unordered_set>
#include <utility>

#include "fsdp/wrap_policy.h"
#include "setup/model_io.h"
#include "setup/sharding_options.h"
#include "setup/split_model.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

void make_separate_parameters(const TrainingInputs& inputs, const RankGroups& groups, c10::Device device,
                              bool from_checkpoint) {
  SeparateParameters* separate = inputs.model->separate_parameters();
  if (!separate) return;
  std::optional<fs::path> folder;
  if (inputs.weights && !from_checkpoint) folder = inputs.weights->folder().path();
  separate->make(groups.world, device, folder);
}

// Makes a unit of the module that owns the tied parameter, so that both stages cut it in the same way.
WrapPolicy with_owner_of(const std::string& tied, WrapPolicy policy) {
  const std::string owner = tied.substr(0, tied.rfind('.'));
  return [owner, policy = std::move(policy)](const WrapCandidate& candidate) {
    return candidate.fqn == owner || (policy && policy(candidate));
  };
}

std::shared_ptr<ShardedModule> shard(const Config& config, const TrainingInputs& inputs, TrainedModel& model,
                                     RankGroups& groups, c10::Device device, bool from_checkpoint) {
  models::PretrainedModel& module = model.module();
  Options options = part_options(config, model, groups, device);
  const std::string tied = inputs.pipeline ? model.staged()->tied_parameter() : "";
  if (!tied.empty()) options.auto_wrap_policy = with_owner_of(tied, std::move(options.auto_wrap_policy));
  const bool from_rank_0 = config.sharding.sync_module_states && !from_checkpoint;
  const bool reads_whole = (from_rank_0 || options.tensor_parallel) && !from_checkpoint && inputs.weights;
  if (reads_whole) read_whole(*inputs.weights, module, options);
  options.sync_module_states = from_rank_0;
  auto sharded = fully_shard(module, options);
  sharded->diagnostics().verify_sharding();
  if (!inputs.weights || from_checkpoint) return sharded;
  if (!reads_whole) load_into_shards(*inputs.weights, *sharded);
  load_buffers(*inputs.weights, module);
  return sharded;
}

}  // namespace

Options part_options(const Config& config, TrainedModel& model, RankGroups& groups, c10::Device device) {
  Options options = sharding_options(config, model.module(), groups.mesh ? nullptr : groups.data, device);
  if (groups.mesh) options.mesh = groups.mesh->data_parallel();
  if (config.parallelism.tensor_degree > 1) {
    options.tensor_parallel = split_over(groups.mesh->group("tp"), config, model);
  }
  return options;
}

ShardedParts shard_parts(const Config& config, const TrainingInputs& inputs, RankGroups& groups, c10::Device device,
                         bool from_checkpoint) {
  make_separate_parameters(inputs, groups, device, from_checkpoint);
  std::vector<TrainedModel*> models = {inputs.model.get()};
  for (const auto& more : inputs.more_models) models.push_back(more.get());
  std::vector<int> stages = {0};
  if (inputs.pipeline) stages = inputs.pipeline->schedule.stages_of(groups.pipeline_rank());
  ShardedParts parts;
  for (size_t i = 0; i < models.size(); ++i) {
    if (inputs.pipeline) models[i]->staged()->keep(inputs.pipeline->parts.at(static_cast<size_t>(stages.at(i))));
    parts.push_back({*models[i], shard(config, inputs, *models[i], groups, device, from_checkpoint), stages.at(i)});
  }
  return parts;
}

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& parameter : module.named_parameters()) {
    if (known.insert(parameter.value().unsafeGetTensorImpl()).second) names.push_back(parameter.key());
  }
  return names;
}

std::vector<std::string> tied_parameters(const TrainingInputs& inputs) {
  const std::string tied = inputs.pipeline ? inputs.model->staged()->tied_parameter() : "";
  return tied.empty() ? std::vector<std::string>{} : std::vector<std::string>{tied};
}

state::ModelParts model_parts(const ShardedParts& parts) {
  state::ModelParts all;
  for (const ShardedPart& part : parts) all.push_back({*part.sharded, part.model.module(), part.stage});
  return all;
}

std::vector<torch::nn::Module*> modules_of(const ShardedParts& parts) {
  std::vector<torch::nn::Module*> all;
  for (const ShardedPart& part : parts) all.push_back(&part.model.module());
  return all;
}

std::vector<MemoryCategory> memory_of(const ShardedParts& parts) {
  std::vector<MemoryCategory> sum = parts.front().sharded->diagnostics().memory();
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::vector<MemoryCategory> more = parts[i].sharded->diagnostics().memory();
    TORCH_INTERNAL_ASSERT(more.size() == sum.size());
    for (size_t category = 0; category < sum.size(); ++category) {
      sum[category].current += more[category].current;
      sum[category].peak += more[category].peak;
      sum[category].reserved += more[category].reserved;
    }
  }
  return sum;
}

std::vector<ShardedModule*> sharded_of(const ShardedParts& parts) {
  std::vector<ShardedModule*> all;
  for (const ShardedPart& part : parts) all.push_back(part.sharded.get());
  return all;
}

}  // namespace fsdp::trainer
