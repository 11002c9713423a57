#include "loop/train_rank.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <filesystem>
#include <vector>

#include "base/allocated_memory.h"
#include "base/out_of_memory.h"
#include "config/byte_count.h"
#include "config/config_writer.h"
#include "data/batches.h"
#include "fsdp/errors.h"
#include "fsdp/fully_shard.h"
#include "fsdp/rank_environment.h"
#include "loop/evaluation.h"
#include "loop/make_passes.h"
#include "loop/pipeline_text.h"
#include "loop/plan_comparison.h"
#include "loop/run_report.h"
#include "loop/step_trace.h"
#include "loop/training_run.h"
#include "report/failure_report.h"
#include "saving/checkpoint_list.h"
#include "saving/run_checkpoints.h"
#include "saving/start_point.h"
#include "setup/distinct_parameters.h"
#include "setup/memory_needs.h"
#include "setup/model_saver.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"
#include "setup/training_inputs.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

// One rank's run, from the first step to the saved model.
class RankRun {
 public:
  RankRun(const Config& config, TrainingInputs inputs, const RankPlace& place);

  void save_config() const;
  // `plan`: see RunRequest.
  RunEnd train(const std::optional<PlannedFigures>& plan);
  void evaluate_model();
  void save_model();
  // Throws an error if the last checkpoint, metrics or a trace could not be written.
  void check_written();

 private:
  void say_what_was_opened(const std::string& place);
  void choose_start();
  void start_at(StartPoint start);
  int64_t load_checkpoint(RunCheckpoints& checkpoints);
  void shard();
  void make_automatic_units();
  RunEnd take_steps(int64_t begin, TrainingRun& run, RunCheckpoints& checkpoints, StepClock* clock);
  MeasuredFigures measured(const TrainingRun& run, const StepClock& clock);
  // Runs `part`. Appends a memory report to out-of-memory errors.
  template <typename Part, typename Memory>
  auto explained(const Part& part, const Memory& memory) const;
  ShardedModule& first_part() const { return *parts_.front().sharded; }
  bool is_first() const { return groups_.world->rank() == 0; }

  const Config& config_;
  TrainingInputs inputs_;
  c10::Device device_;
  RankGroups groups_;
  RunReport report_;
  StartPoint start_;
  std::vector<std::string> unwritten_;   // why the last checkpoint or a trace is missing
  std::vector<std::string> parameters_;  // the names of the whole model's
  ShardedParts parts_;
  std::unique_ptr<StepPasses> passes_;
};

template <typename Part, typename Memory>
auto RankRun::explained(const Part& part, const Memory& memory) const {
  try {
    return part();
  } catch (const std::exception& error) {
    if (!base::is_out_of_memory(error)) throw;
    throw c10::OutOfMemoryError(first_part().diagnostics().explain_out_of_memory(error, memory()));
  }
}

GlobalBatch global_batch_of(const Config& config, const RankGroups& groups) {
  return {config.data.train_batch_size, groups.data->size(), config.steps.gradient_accumulation_steps};
}

StepWork work_of(const Config& config, const TrainingInputs& inputs, const RankGroups& groups) {
  return {.samples = global_batch_of(config, groups).samples(),
          .sample = inputs.model->sample_work(inputs.train->batch({0})),
          .recomputes = config.model.activation_checkpointing};
}

RankRun::RankRun(const Config& config, TrainingInputs inputs, const RankPlace& place)
    : config_(config),
      inputs_(std::move(inputs)),
      device_(place.device),
      groups_(make_rank_groups(config, place.communicator)),
      report_(config, work_of(config, inputs_, groups_), *groups_.world, device_),
      parameters_(parameter_names(inputs_.model->module())) {
  say_what_was_opened(place.text);
  choose_start();
  shard();
  for (torch::nn::Module* module : modules_of(parts_)) module->train();
  passes_ = make_passes(config_.steps, inputs_, groups_, parts_, parameters_);
}

void RankRun::say_what_was_opened(const std::string& place) {
  if (!place.empty()) report_.say(place);
  for (const Dataset* data : {inputs_.train.get(), inputs_.eval.get()}) {
    if (data && !data->remark().empty()) report_.say(data->remark());
  }
}

// At this point, this run holds the lock of the folder.
void RankRun::choose_start() {
  start_at(agree_on_start(config_, *groups_.world));
  if (!is_first()) return;
  try {
    remove_leftovers(config_.output.output_dir);
  } catch (const c10::Error& error) {
    report_.say(std::string("left over from an earlier run: ") + error.what_without_backtrace());
  }
}

void RankRun::start_at(StartPoint start) {
  start_ = std::move(start);
  for (const std::string& text : start_.texts) report_.say(text);
}

// If a checkpoint turns out to be damaged while it is read, loads the newest sound one instead.
int64_t RankRun::load_checkpoint(RunCheckpoints& checkpoints) {
  while (true) {
    try {
      return checkpoints.load(*start_.checkpoint);
    } catch (const StepFailed& error) {
      start_at(agree_on_start_instead(config_, *groups_.world, *start_.checkpoint, error));
    }
  }
}

void RankRun::shard() {
  parts_ = shard_parts(config_, inputs_, groups_, device_, start_.checkpoint.has_value());
  for (const std::string& line : pipeline_lines(config_, inputs_, groups_, parts_)) report_.say(line);
  if (config_.sharding.cpu_offload && device_.is_cpu()) {
    report_.say("cpu_offload: shards are in host memory already, as training runs on the CPU");
  }
  if (config_.sharding.offload_path) {
    report_.say("shards and optimizer state are in files in " + *config_.sharding.offload_path);
  }
}

// Runs a forward to create the units: optimizer state cannot be loaded before they exist.
void RankRun::make_automatic_units() {
  const at::NoGradGuard no_grad;
  inputs_.model->loss(inputs_.train->batch({0}).to(device_));
  first_part().cut_units();
}

void RankRun::save_config() const {
  if (is_first()) write_config(config_, (fs::path(config_.output.output_dir) / "resolved_config.json").string());
}

RunEnd RankRun::train(const std::optional<PlannedFigures>& plan) {
  TrainBatches batches(*inputs_.train, {.global = global_batch_of(config_, groups_),
                                        .rank = groups_.data->rank(),
                                        .shuffle = config_.data.shuffle,
                                        .seed = static_cast<uint64_t>(config_.steps.seed),
                                        .device = device_});
  TrainingRun run(config_, *passes_, inputs_.model->separate_parameters(), batches);
  RunCheckpoints checkpoints({config_, model_parts(parts_), tied_parameters(inputs_), batches, *inputs_.train, run,
                              report_, groups_.world, device_});
  int64_t step = 0;
  if (start_.checkpoint) {
    if (config_.sharding.wrap_policy == UnitsBy::kAutoUnits) make_automatic_units();
    step = load_checkpoint(checkpoints);
  }
  report_.start(step);
  StepClock clock;
  const RunEnd end = take_steps(step, run, checkpoints, plan ? &clock : nullptr);
  if (plan && is_first() && end == RunEnd::kFinished) report_.say(comparison_text(*plan, measured(run, clock)));
  return end;
}

MeasuredFigures RankRun::measured(const TrainingRun& run, const StepClock& clock) {
  MeasuredFigures figures{.categories = memory_of(parts_),
                          .bytes = base::peak_allocated_bytes(device_).value_or(report_.peak_memory()),
                          .step_seconds = clock.seconds()};
  for (MemoryCategory& category : run.memory()) figures.categories.push_back(std::move(category));
  return figures;
}

RunEnd RankRun::take_steps(int64_t begin, TrainingRun& run, RunCheckpoints& checkpoints, StepClock* clock) {
  StepTrace trace(config_.trace, sharded_of(parts_), *groups_.world, config_.steps.max_steps - begin,
                  [&run] { return run.memory(); });
  if (config_.trace.path && !trace.traces()) report_.say("no trace: training ends before trace_first_step");
  if (begin >= config_.steps.max_steps) {
    report_.say(c10::str("nothing is left to train: max_steps is ", config_.steps.max_steps));
  }
  const auto take_step = [&] { return clock ? clock->timed([&] { return run.step(); }) : run.step(); };
  for (int64_t step = begin + 1; step <= config_.steps.max_steps; ++step) {
    trace.before_step(step - begin);
    report_.after_step(step, explained(take_step, [&] { return run.memory(); }), *passes_);
    if (step == begin + 1 && config_.sharding.wrap_policy == UnitsBy::kAutoUnits) {
      report_.say(c10::str("made ", first_part().diagnostics().stats().units, " units from the execution order"));
    }
    if (const std::string text = trace.after_step(step - begin); !text.empty()) report_.say(text);
    if (checkpoints.after_step(step)) return RunEnd::kTerminated;
  }
  checkpoints.finish();
  unwritten_ = {checkpoints.failure(), trace.finish()};
  return RunEnd::kFinished;
}

void RankRun::evaluate_model() {
  const auto set_full_precision = [&](bool on) {
    for (const ShardedPart& part : parts_) part.sharded->set_full_precision(on);
  };
  set_full_precision(config_.precision.full_precision_in_eval);
  const double loss = explained(
      [&] {
        return evaluate(*passes_, modules_of(parts_), *inputs_.eval, config_.data.eval_batch_size,
                        {*groups_.world, *groups_.data}, device_);
      },
      [] { return std::vector<MemoryCategory>{}; });
  set_full_precision(false);
  report_.after_evaluation(config_.steps.max_steps, loss);
}

void RankRun::save_model() {
  const fs::path path = final_folder(config_.output);
  formats::HfFolderWriterOptions options;
  options.max_shard_size = *parse_byte_count(config_.output.max_shard_size);
  if (inputs_.weights) {
    options.tokenizer_source = inputs_.weights->folder().path();
    options.experts = inputs_.weights->expert_tensors();
  }
  save_folder(path, {inputs_.model_config, parts_, tied_parameters(inputs_)}, groups_, device_, options);
  report_.say("saved the model to " + path.string());
}

// A missing checkpoint is an error of all ranks; rank 0 may have more to report.
void RankRun::check_written() {
  const bool of_all = !unwritten_.at(0).empty();
  unwritten_.push_back(report_.finish());
  std::erase(unwritten_, "");
  const std::string text = c10::Join("; ", unwritten_);
  if (of_all) throw ErrorOfAllRanks({__func__, __FILE__, __LINE__}, text);
  if (!text.empty()) throw FileError(text);
}

}  // namespace

RunEnd train_rank(const Config& config, const RankEnvironment& environment, const RunRequest& request) {
  const PlaceChoice choice = choose_place(config.communication, environment, places_available());
  TrainingInputs inputs = open_training_inputs(config, environment.world_size);
  // Checked here so that errors come before ranks wait for one another and before any rank allocates memory.
  check_memory(config, inputs.model->module(), *inputs.train,
               {environment.local_world_size, environment.world_size, choice.device});
  if (request.plan) {
    check_plan_is_of(*request.plan, config, environment.world_size, choice.device,
                     parameter_count(inputs.model->module()));
  }
  choose_start(config);
  const RankPlace place = take_place(choice, environment);
  try {
    return train_at(config, std::move(inputs), place, request);
  } catch (const ErrorOfAllRanks& error) {
    report_failure_of_all(*place.communicator, environment.local_rank, error.what_without_backtrace());
    throw ReportedFailure(error.what_without_backtrace());
  }
}

RunEnd train_at(const Config& config, TrainingInputs inputs, const RankPlace& place, const RunRequest& request) {
  // Random operators of the model (dropout) draw different numbers on each rank, just as ranks take different samples.
  at::manual_seed(static_cast<uint64_t>(config.steps.seed) + static_cast<uint64_t>(place.communicator->rank()));
  RankRun run(config, std::move(inputs), place);
  if (request.save_config) run.save_config();
  if (run.train(request.plan) == RunEnd::kTerminated) return RunEnd::kTerminated;
  if (config.output.do_eval) run.evaluate_model();
  if (config.output.save_final) run.save_model();
  run.check_written();
  return RunEnd::kFinished;
}

}  // namespace fsdp::trainer
