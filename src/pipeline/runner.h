// Carries out a pipeline's schedule on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fsdp/pipeline.h"
#include "pipeline/stage_links.h"
#include "pipeline/stage_runner.h"
#include "pipeline/tied_parameters.h"

namespace fsdp {

class Pipeline::Runner {
 public:
  // `schedule`: with communication. Collective.
  Runner(DeviceMesh mesh, PipelineSchedule schedule, std::vector<PipelineStage> stages, const PipelineOptions& options);

  using Outputs = std::vector<std::vector<at::Tensor>>;  // of the last stage, by micro-batch
  Outputs step(const BackwardOptions& backward);
  Outputs evaluate();

  const DeviceMesh& mesh() const { return mesh_; }
  const std::map<int, pipeline::StageRunner>& stages() const { return stages_; }
  pipeline::TiedParameters& tied() { return tied_; }
  const std::vector<PipelinePass>& passes() const { return passes_; }

 private:
  using Stage = pipeline::StageRunner;
  static std::map<int, Stage> make_stages(std::vector<PipelineStage> stages, const pipeline::StageLinks& links);
  void begin(const BackwardOptions& backward);
  void end_gradients();
  // Runs an action. If it fails, says where, and ends the groups of all ranks, which would wait for this one.
  void carry_out(const PipelineAction& action, const std::function<void()>& body);
  void give_up(const std::string& reason);
  void perform(const PipelineAction& action, bool then_sends);
  void forward(Stage& stage, int micro_batch);
  // `then_sends`: whether the gradients of the inputs are to be sent next.
  void backward(Stage& stage, int micro_batch, bool then_sends);
  double since_begin() const;
  Outputs take_results();

  const DeviceMesh mesh_;
  const PipelineSchedule schedule_;
  const PipelineOptions options_;
  pipeline::StageLinks links_;
  std::map<int, Stage> stages_;  // by index
  pipeline::TiedParameters tied_;

  // Of the current step.
  BackwardOptions backward_{};
  std::chrono::steady_clock::time_point begun_{};
  std::vector<PipelinePass> passes_;
  std::map<int, int> backwards_;  // number of backward passes, by stage
  Outputs results_;
};

}  // namespace fsdp
