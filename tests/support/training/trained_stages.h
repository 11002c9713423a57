// A small GPT-2 that trains in the stages of a pipeline, or whole, on any mesh.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint.h"
#include "fsdp/pipeline.h"
#include "fsdp/pipeline_state.h"
#include "models/staged_lm.h"

namespace fsdp::testing {

struct StageMesh {
  const char* schedule;
  int stage_ranks, stages_per_rank, replicas, shards;
  ShardingStrategy strategy = ShardingStrategy::kShardGradOp;
  int parts = 1;  // ranks over which weights are split

  int ranks() const { return stage_ranks * replicas * shards * parts; }
  std::string text() const;
};

// One rank, data-parallel ranks, and pipelines of several kinds, with weights whole and split.
std::vector<StageMesh> stage_meshes();

// One rank of a training with AdamW, which has a group of matrices and one of vectors. The model's embedding is its
// head.
class TrainedStages {
 public:
  TrainedStages(const std::shared_ptr<Communicator>& world, const StageMesh& mesh, uint64_t seed = 17,
                double weight_decay = 0.1);

  void step(int number);

  CheckpointedPipeline contents();
  PipelinedModel model();
  OptimizerState& optimizer() { return *state_; }
  void save(const std::filesystem::path& folder);
  LoadedCheckpoint load(const std::filesystem::path& folder, const LoadOptions& options = {});

 private:
  void add_stage(int index, const std::vector<models::StagePart>& parts, const StageMesh& mesh, uint64_t seed);
  void make_optimizer(double weight_decay);
  std::vector<CheckpointedStage> stages();

  std::shared_ptr<Communicator> world_;
  DeviceMesh mesh_;
  int step_ = 0;
  std::vector<std::shared_ptr<models::CausalLM>> models_;
  std::vector<PipelineStage> stages_;
  std::vector<std::string> tied_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::unique_ptr<OptimizerState> state_;
  std::optional<Pipeline> pipeline_;
};

}  // namespace fsdp::testing
