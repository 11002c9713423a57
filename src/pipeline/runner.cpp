#include "pipeline/runner.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "base/device_stream.h"
#include "comm/checked/checked_communicator.h"
#include "comm/checked/collective_monitor.h"
#include "engine/engine.h"
#include "pipeline/traced_pass.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = PipelineActionKind;

// Whether a stage's units stay gathered between its passes, so that gathering them ahead, all at once, saves gathers.
bool stays_gathered(const pipeline::StageRunner& stage) {
  const auto& units = stage.sharded().engine().units();
  return std::none_of(units.begin(), units.end(),
                      [](const auto& unit) { return reshards_after_forward(unit->options().strategy); });
}

// Returns the pipeline's group with the flight record and the watchdog of the stages' groups (DebugOptions).
// Collective.
std::shared_ptr<Communicator> watched(const DeviceMesh& mesh, const std::vector<PipelineStage>& stages) {
  const std::shared_ptr<Communicator> group = mesh.group("pp");
  const ProcessMesh& of_stage = stages.front().sharded->engine().mesh();
  const auto monitor = comm::CheckedCommunicator::monitor_over(of_stage.world ? *of_stage.world : *of_stage.shard);
  return monitor ? comm::CheckedCommunicator::over(group, monitor, "pipeline") : group;
}

}  // namespace

Pipeline::Runner::Runner(DeviceMesh mesh, PipelineSchedule schedule, std::vector<PipelineStage> stages,
                         const PipelineOptions& options)
    : mesh_(std::move(mesh)),
      schedule_(std::move(schedule)),
      options_(options),
      links_(schedule_.rank_of_stage, mesh_.rank("pp"), watched(mesh_, stages)),
      stages_(make_stages(std::move(stages), links_)),
      tied_(options_.tied_parameters, stages_, mesh_.rank("pp"), mesh_.group("pp")) {
  for (const PipelineAction& action : schedule_.of_rank[static_cast<size_t>(mesh_.rank("pp"))]) {
    if (action.kind == Kind::kInputGradient) leaves_weights_.emplace(action.stage, *action.micro_batch);
  }
}

std::map<int, pipeline::StageRunner> Pipeline::Runner::make_stages(std::vector<PipelineStage>&& stages,
                                                                   const pipeline::StageLinks& links) {
  std::map<int, Stage> made;
  for (PipelineStage& stage : stages) {
    const int index = stage.index;
    made.try_emplace(index, std::move(stage), links.is_last(index));
  }
  return made;
}

// ---------------------------------------------------------------- steps

Pipeline::Runner::Outputs Pipeline::Runner::step(const BackwardOptions& backward) {
  const at::AutoGradMode record(true);
  begin(backward);
  if (backward.requires_gradient_sync) tied_.begin_step();
  const std::vector<PipelineAction>& actions = schedule_.of_rank[static_cast<size_t>(mesh_.rank("pp"))];
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool then_sends = i + 1 < actions.size() && actions[i + 1].kind == Kind::kSendBackward;
    carry_out(actions[i], [&] { perform(actions[i], then_sends); });
  }
  end_gradients();
  return take_results();
}

void Pipeline::Runner::end_gradients() {
  const bool adds_up = backward_.requires_gradient_sync && !tied_.empty();
  if (backward_.is_last_backward || adds_up) {
    for (auto& [index, stage] : stages_) stage.sharded().wait_for_gradients();
  }
  if (adds_up) tied_.add_up();
}

// The forward passes and their messages keep the order of the schedule, in which no rank waits for ever.
Pipeline::Runner::Outputs Pipeline::Runner::evaluate() {
  const at::NoGradGuard no_grad;
  begin({});
  for (const PipelineAction& action : schedule_.of_rank[static_cast<size_t>(mesh_.rank("pp"))]) {
    const bool is_forward =
        action.kind == Kind::kForward || action.kind == Kind::kSendForward || action.kind == Kind::kReceiveForward;
    if (is_forward) carry_out(action, [&] { perform(action, /*then_sends=*/false); });
  }
  return take_results();
}

void Pipeline::Runner::begin(const BackwardOptions& backward) {
  backward_ = backward;
  passes_.clear();
  results_.assign(static_cast<size_t>(schedule_.micro_batches), {});
  weight_passes_.clear();
  links_.begin_step();
  for (auto& [index, stage] : stages_) stage.begin_step();
  begun_ = Clock::now();
}

double Pipeline::Runner::since_begin() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

Pipeline::Runner::Outputs Pipeline::Runner::take_results() {
  const bool has_last = stages_.count(schedule_.stages() - 1) > 0;
  return has_last ? std::move(results_) : Outputs();
}

// ---------------------------------------------------------------- actions

void Pipeline::Runner::carry_out(const PipelineAction& action, const std::function<void()>& body) {
  const auto place = [&] { return c10::str("fsdp: Pipeline: ", mesh_.where(), ", action ", to_string(action)); };
  try {
    body();
  } catch (c10::Error& error) {
    give_up(c10::str(place(), ": ", error.what_without_backtrace()));
    error.add_context(place());
    throw;
  } catch (const std::exception& error) {
    give_up(c10::str(place(), ": ", error.what()));
    throw;
  }
}

void Pipeline::Runner::give_up(const std::string& reason) {
  links_.begin_step();
  for (auto& [index, stage] : stages_) stage.begin_step();
  mesh_.group("pp")->abort(reason.substr(0, reason.find('\n')));
}

void Pipeline::Runner::perform(const PipelineAction& action, bool then_sends) {
  Stage& stage = stages_.at(action.stage);
  switch (action.kind) {
    case Kind::kForward:
      return forward(stage, *action.micro_batch);
    case Kind::kBackward:
    case Kind::kInputGradient:
      return backward(stage, action, then_sends);
    case Kind::kWeightGradient:
      return weight_gradients(stage, *action.micro_batch);
    case Kind::kSendForward:
      return links_.send_outputs(action.stage, *action.micro_batch);
    case Kind::kSendBackward:
      return links_.send_gradients(action.stage, *action.micro_batch);
    case Kind::kReceiveForward:
      return expect_inputs(stage, *action.micro_batch);
    case Kind::kReceiveBackward:
      return links_.expect_gradients(action.stage, *action.micro_batch, stage.empty_gradients(*action.micro_batch));
    case Kind::kUnshard:
      if (stays_gathered(stage)) stage.sharded().unshard(/*async_op=*/true);
      return;
    case Kind::kReshard:
      if (stages_.size() > 1) stage.sharded().reshard();
      return;
    case Kind::kReduceGradients:
      if (backward_.is_last_backward) stage.sharded().wait_for_gradients();
  }
}

// Where the device computes, the host waits for the sizes.
void Pipeline::Runner::expect_inputs(Stage& stage, int micro_batch) {
  const auto expect = [&] {
    links_.expect_inputs(stage.index(), micro_batch, stage.device());
    return true;
  };
  if (!base::has_streams(stage.device())) {
    expect();
    return;
  }
  pipeline::traced_wait(stage, c10::str("the sizes of micro-batch ", micro_batch), Pass::kForward, expect);
}

void Pipeline::Runner::forward(Stage& stage, int micro_batch) {
  const auto inputs =
      pipeline::traced_wait(stage, c10::str("the activation of micro-batch ", micro_batch), Pass::kForward,
                            [&] { return links_.take_inputs(stage.index(), micro_batch); });
  const pipeline::TracedPass pass(stage, since_begin());
  const bool leaves_weights = at::GradMode::is_enabled() && leaves_weights_.contains({stage.index(), micro_batch});
  std::vector<at::Tensor> outputs = stage.forward(micro_batch, inputs, leaves_weights);
  passes_.push_back(pass.ended({stage.index(), Kind::kForward, micro_batch}, since_begin()));
  if (!links_.is_last(stage.index())) {
    links_.put_outputs(stage.index(), micro_batch, std::move(outputs));
    return;
  }
  for (const at::Tensor& output : outputs) {
    results_[static_cast<size_t>(micro_batch)].push_back(output.detach());
  }
}

// Reductions run beside the passes of other stages: the end of the step waits for them.
BackwardOptions Pipeline::Runner::options_of_pass(const Stage& stage) {
  const bool is_last_of_step = ++weight_passes_[stage.index()] == schedule_.micro_batches;
  BackwardOptions options = backward_;
  options.is_last_backward = false;
  options.requires_gradient_sync &= is_last_of_step || options_.sync_each_micro_batch;
  options.requires_all_reduce &= is_last_of_step || options_.all_reduce_each_micro_batch;
  return options;
}

void Pipeline::Runner::backward(Stage& stage, const PipelineAction& action, bool then_sends) {
  const int micro_batch = *action.micro_batch;
  auto gradients = pipeline::traced_wait(stage, c10::str("the gradient of micro-batch ", micro_batch), Pass::kBackward,
                                         [&] { return links_.take_gradients(stage.index(), micro_batch); });
  BackwardOptions options = backward_;
  options.requires_gradient_sync = options.is_last_backward = false;
  if (action.kind == Kind::kBackward) options = options_of_pass(stage);
  const pipeline::TracedPass pass(stage, since_begin());
  stage.backward(micro_batch, std::move(gradients), options, [&](std::vector<at::Tensor> of_inputs) {
    links_.put_gradients(stage.index(), micro_batch, std::move(of_inputs));
    if (then_sends) links_.send_gradients(stage.index(), micro_batch);
  });
  passes_.push_back(pass.ended(action, since_begin()));
}

void Pipeline::Runner::weight_gradients(Stage& stage, int micro_batch) {
  const BackwardOptions options = options_of_pass(stage);
  const pipeline::TracedPass pass(stage, since_begin());
  stage.weight_gradients(micro_batch, options);
  passes_.push_back(pass.ended({stage.index(), Kind::kWeightGradient, micro_batch}, since_begin()));
}

}  // namespace fsdp
