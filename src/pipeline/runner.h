// Carries out a pipeline's schedule on one rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
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
  static std::map<int, Stage> make_stages(std::vector<PipelineStage>&& stages, const pipeline::StageLinks& links);
  void begin(const BackwardOptions& backward);
  void end_gradients();
  // Runs an action. If it fails, says where, and ends the groups of all ranks, which would wait for this one.
  void carry_out(const PipelineAction& action, const std::function<void()>& body);
  void give_up(const std::string& reason);
  void perform(const PipelineAction& action, bool then_sends);
  void expect_inputs(Stage& stage, int micro_batch);
  void forward(Stage& stage, int micro_batch);
  // Backward, or its part for the gradients of the inputs. `then_sends`: whether these are to be sent next.
  void backward(Stage& stage, const PipelineAction& action, bool then_sends);
  void weight_gradients(Stage& stage, int micro_batch);
  // The options of a pass that may be the last one of the step to compute gradients of the stage's weights.
  BackwardOptions options_of_pass(const Stage& stage);
  double since_begin() const;
  Outputs take_results();

  const DeviceMesh mesh_;
  const PipelineSchedule schedule_;
  const PipelineOptions options_;
  pipeline::StageLinks links_;
  std::map<int, Stage> stages_;  // by index
  pipeline::TiedParameters tied_;
  std::set<std::pair<int, int>> leaves_weights_;  // stages and micro-batches with passes for inputs and weights apart

  // Of the current step.
  BackwardOptions backward_{};
  std::chrono::steady_clock::time_point begun_{};
  std::vector<PipelinePass> passes_;
  std::map<int, int> weight_passes_;  // number of passes with gradients of weights, by stage
  Outputs results_;
};

}  // namespace fsdp
