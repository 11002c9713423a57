#include "support/training/trained_stages.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "models/gpt2.h"
#include "models/testing/small_models.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kBlocks = 4;
constexpr int kMicroBatches = 2;

std::shared_ptr<models::CausalLM> make_gpt2_part(const models::StagePart& part, uint64_t seed) {
  return seeded(
      [&] {
        auto model = deferred_init([&] {
          auto gpt2 = models::make_causal_lm(
              models::changed(models::small_gpt2(), {{"n_layer", kBlocks}, {"tie_word_embeddings", true}}),
              torch::kFloat32, torch::kCPU);
          gpt2->initialize();
          return gpt2;
        });
        models::staged_lm(*model).keep(part);
        materialize(*model);
        return model;
      },
      seed);
}

}  // namespace

std::string StageMesh::text() const {
  return c10::str(schedule, ", ", stage_ranks, " x ", stages_per_rank, " stages, ", replicas, " x ", shards, " ranks",
                  parts > 1 ? c10::str(", weights in ", parts, " parts") : "");
}

std::vector<StageMesh> stage_meshes() {
  return {
      {"1F1B", 1, 1, 1, 1},
      {"1F1B", 1, 1, 1, 3, ShardingStrategy::kFullShard},
      {"1F1B", 2, 1, 1, 2},
      {"Interleaved1F1B", 2, 2, 1, 1},
      {"ZBVZeroBubble", 2, 2, 1, 1},
      {"GPipe", 2, 1, 2, 1, ShardingStrategy::kNoShard},
      {"1F1B", 1, 1, 2, 2, ShardingStrategy::kHybridShard},
      {"1F1B", 2, 1, 1, 1, ShardingStrategy::kShardGradOp, 2},
      {"1F1B", 1, 1, 1, 2, ShardingStrategy::kFullShard, 2},
  };
}

TrainedStages::TrainedStages(const std::shared_ptr<Communicator>& world, const StageMesh& mesh, uint64_t seed,
                             double weight_decay)
    : world_(world),
      mesh_(DeviceMesh::make(
          world,
          {{"pp", mesh.stage_ranks}, {"dp_replicate", mesh.replicas}, {"dp_shard", mesh.shards}, {"tp", mesh.parts}})) {
  const auto schedule = make_pipeline_schedule(mesh.schedule, mesh.stage_ranks, mesh.stages_per_rank, kMicroBatches);
  const auto parts = models::stage_parts(kBlocks, schedule.stages());
  for (int index = 0; index < schedule.stages(); ++index) {
    if (schedule.rank_of_stage[static_cast<size_t>(index)] == mesh_.rank("pp")) add_stage(index, parts, mesh, seed);
  }
  if (schedule.stages() > 1) tied_ = {"transformer.wte.weight"};
  make_optimizer(weight_decay);
  pipeline_.emplace(mesh_, schedule, stages_, PipelineOptions{.tied_parameters = tied_});
}

void TrainedStages::step(int number) {
  step_ = number;
  for (const PipelineStage& stage : stages_) stage.sharded->zero_grad();
  pipeline_->step();
  optimizer_->step();
}

std::vector<CheckpointedStage> TrainedStages::stages() {
  std::vector<CheckpointedStage> stages;
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages.push_back({stages_[i].index, *stages_[i].sharded, *models_[i]});
  }
  return stages;
}

CheckpointedPipeline TrainedStages::contents() { return {stages(), state_.get(), tied_}; }

PipelinedModel TrainedStages::model() {
  PipelinedModel model{mesh_, stages(), tied_};
  if (!tied_.empty()) model.aliases["lm_head.weight"] = tied_.front();
  return model;
}

void TrainedStages::save(const std::filesystem::path& folder) {
  save_checkpoint(folder, contents(), R"({"step": 2})", *world_);
}

LoadedCheckpoint TrainedStages::load(const std::filesystem::path& folder, const LoadOptions& options) {
  return load_checkpoint(folder, contents(), *world_, options);
}

void TrainedStages::add_stage(int index, const std::vector<models::StagePart>& parts, const StageMesh& mesh,
                              uint64_t seed) {
  const models::StagePart& part = parts[static_cast<size_t>(index)];
  models_.push_back(make_gpt2_part(part, seed));
  Options options;
  options.mesh = mesh_.data_parallel();
  options.sharding_strategy = mesh.strategy;
  options.auto_wrap_policy = module_class_policy<models::GPT2BlockImpl, models::EmbeddingImpl>();
  if (mesh.parts > 1) options.tensor_parallel = {mesh_.group("tp"), models_.back()->tensor_parallel_plan()};
  const int data_rank = mesh_.rank("dp_replicate") * mesh.shards + mesh_.rank("dp_shard");
  const auto batch = [this, data_rank](int micro_batch) {
    const int64_t number = 4 * step_ + 2 * micro_batch + data_rank;
    const torch::Tensor ids = torch::arange(14) * (3 + number) % 31;
    return models::StageBatch{ids.view({2, 7}), ids.view({2, 7}), 1.0 / kMicroBatches};
  };
  auto sharded = fully_shard(*models_.back(), options);
  stages_.push_back({index, sharded, models::stage_forward(models::staged_lm(*models_.back()), part, batch)});
}

// Without weight decay of vectors, as is usual.
void TrainedStages::make_optimizer(double weight_decay) {
  std::vector<at::Tensor> matrices, vectors;
  for (const PipelineStage& stage : stages_) {
    for (const auto& [name, leaf] : stage.sharded->named_parameters()) {
      (name.ends_with(".bias") || name.find(".ln_") != std::string::npos ? vectors : matrices).push_back(leaf);
    }
  }
  const auto group = [](std::vector<at::Tensor> leaves, double decay) {
    return torch::optim::OptimizerParamGroup(
        std::move(leaves),
        std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(0.01).weight_decay(decay)));
  };
  optimizer_ = std::make_unique<torch::optim::AdamW>(
      std::vector{group(std::move(matrices), weight_decay), group(std::move(vectors), 0.0)});
  state_ = state_of(*optimizer_);
}

}  // namespace fsdp::testing
