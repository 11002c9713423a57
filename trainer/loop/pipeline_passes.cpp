#include "loop/pipeline_passes.h"

#include <ATen/ops/mul.h>

#include <algorithm>
#include <utility>

namespace fsdp::trainer {

PipelinePasses::PipelinePasses(const StepsConfig& config, const DeviceMesh& mesh, const PipelineLayout& layout,
                               const std::vector<TrainedStage>& stages, const PipelineOptions& names)
    : config_(config) {
  PipelineOptions options = names;
  options.sync_each_micro_batch = config.sync_each_batch;
  options.all_reduce_each_micro_batch = config.all_reduce_each_batch;
  std::vector<PipelineStage> of_pipeline;
  for (const TrainedStage& stage : stages) {
    sharded_.push_back(stage.sharded.get());
    of_pipeline.push_back(stage_of(stage, layout.parts.at(static_cast<size_t>(stage.index))));
  }
  pipeline_ = std::make_unique<Pipeline>(mesh, layout.schedule, std::move(of_pipeline), options);
}

// The last stage returns the loss that backward begins with, and the one of the batch.
PipelineStage PipelinePasses::stage_of(const TrainedStage& stage, const models::StagePart& part) {
  const auto batch = [this](int micro_batch) {
    const Batch& tokens = batches_.at(static_cast<size_t>(micro_batch)).batch;
    return models::StageBatch{tokens.inputs, tokens.labels};
  };
  StageForward forward = models::stage_forward(stage.model, part, batch);
  if (!part.is_last) return {stage.index, stage.sharded, std::move(forward)};
  const double share = 1.0 / static_cast<double>(config_.gradient_accumulation_steps);
  const auto scaled = [this, share, forward = std::move(forward)](const std::vector<at::Tensor>& inputs,
                                                                  int micro_batch) {
    std::vector<at::Tensor> outputs = forward(inputs, micro_batch);
    if (!scaler_) return outputs;
    const double weight = batches_.at(static_cast<size_t>(micro_batch)).weight;
    outputs.insert(outputs.begin(), scaler_->scale(outputs.front() * (share * weight)));
    return outputs;
  };
  return {stage.index, stage.sharded, scaled};
}

std::optional<double> PipelinePasses::accumulate_gradients(TrainBatches& batches, ShardedGradScaler& scaler) {
  batches_.clear();
  for (int64_t i = 0; i < config_.gradient_accumulation_steps; ++i) batches_.push_back(batches.next());
  scaler_ = &scaler;
  const auto traced = sharded_.front()->tracing().range("passes");
  const auto outputs = pipeline_->step();
  if (outputs.empty()) return std::nullopt;
  double loss_sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) loss_sum += outputs[i].at(1).item<double>() * batches_[i].weight;
  return loss_sum * (1.0 / static_cast<double>(config_.gradient_accumulation_steps));
}

StepPasses::GradientNorm PipelinePasses::grad_norm(ShardedGradScaler& scaler, bool /*others_not_finite*/) {
  pipeline_->unscale_(scaler);
  return {.norm = pipeline_->grad_norm().item<double>()};
}

// The schedule has a fixed number of micro-batches: the last batch fills the places that are left.
std::vector<double> PipelinePasses::losses(const std::vector<Batch>& batches) {
  batches_.clear();
  for (int64_t i = 0; i < most_batches(); ++i) {
    batches_.push_back({batches.at(std::min(static_cast<size_t>(i), batches.size() - 1))});
  }
  scaler_ = nullptr;
  std::vector<double> losses;
  for (const auto& outputs : pipeline_->evaluate()) losses.push_back(outputs.front().item<double>());
  if (!losses.empty()) losses.resize(batches.size());
  return losses;
}

}  // namespace fsdp::trainer
