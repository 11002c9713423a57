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
#include "setup/model_io.h"
#include "setup/sharding_options.h"
#include "setup/training_inputs.h"
#include "state/together.h"

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
  void choose_start();
  void start_at(StartPoint start);
  int64_t load_checkpoint(RunCheckpoints& checkpoints);
  void shard();
  void make_separate_parameters();
  void make_automatic_units();
  RunEnd take_steps(int64_t begin, TrainingRun& run, RunCheckpoints& checkpoints, StepClock* clock);
  MeasuredFigures measured(const TrainingRun& run, const StepClock& clock);
  // Runs `part`. Appends a memory report to out-of-memory errors.
  template <typename Part, typename Memory>
  auto explained(const Part& part, const Memory& memory) const;
  models::PretrainedModel& module() const { return inputs_.model->module(); }
  bool is_first() const { return communicator_->rank() == 0; }

  const Config& config_;
  TrainingInputs inputs_;
  c10::Device device_;
  std::shared_ptr<Communicator> communicator_;
  RunReport report_;
  StartPoint start_;
  std::vector<std::string> unwritten_;  // why the last checkpoint or a trace is missing
  std::shared_ptr<ShardedModule> sharded_;
};

template <typename Part, typename Memory>
auto RankRun::explained(const Part& part, const Memory& memory) const {
  try {
    return part();
  } catch (const std::exception& error) {
    if (!base::is_out_of_memory(error)) throw;
    throw c10::OutOfMemoryError(sharded_->diagnostics().explain_out_of_memory(error, memory()));
  }
}

GlobalBatch global_batch_of(const Config& config, int world_size) {
  return {config.data.train_batch_size, world_size, config.steps.gradient_accumulation_steps};
}

StepWork work_of(const Config& config, const TrainingInputs& inputs, int world_size) {
  return {.samples = global_batch_of(config, world_size).samples(),
          .sample = inputs.model->sample_work(inputs.train->batch({0})),
          .recomputes = config.model.activation_checkpointing};
}

RankRun::RankRun(const Config& config, TrainingInputs inputs, const RankPlace& place)
    : config_(config),
      inputs_(std::move(inputs)),
      device_(place.device),
      communicator_(place.communicator),
      report_(config, work_of(config, inputs_, communicator_->size()), *communicator_, device_) {
  if (!place.text.empty()) report_.say(place.text);
  for (const Dataset* data : {inputs_.train.get(), inputs_.eval.get()}) {
    if (data && !data->remark().empty()) report_.say(data->remark());
  }
  choose_start();
  shard();
  module().train();
}

// At this point, this run holds the lock of the folder.
void RankRun::choose_start() {
  start_at(agree_on_start(config_, *communicator_));
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
      start_at(agree_on_start_instead(config_, *communicator_, *start_.checkpoint, error));
    }
  }
}

void RankRun::shard() {
  Options options = sharding_options(config_, module(), communicator_, device_);
  const bool from_rank_0 = config_.sharding.sync_module_states && !start_.checkpoint;
  if (from_rank_0 && inputs_.weights) read_on_rank_0(*inputs_.weights, module(), options);
  options.sync_module_states = from_rank_0;
  make_separate_parameters();
  sharded_ = fully_shard(module(), options);
  sharded_->diagnostics().verify_sharding();
  if (config_.sharding.cpu_offload && device_.is_cpu()) {
    report_.say("cpu_offload: shards are in host memory already, as training runs on the CPU");
  }
  if (config_.sharding.offload_path) {
    report_.say("shards and optimizer state are in files in " + *config_.sharding.offload_path);
  }
  if (!inputs_.weights || start_.checkpoint) return;
  if (!from_rank_0) load_into_shards(*inputs_.weights, *sharded_);
  load_buffers(*inputs_.weights, module());
}

void RankRun::make_separate_parameters() {
  SeparateParameters* separate = inputs_.model->separate_parameters();
  if (!separate) return;
  std::optional<fs::path> folder;
  if (inputs_.weights && !start_.checkpoint) folder = inputs_.weights->folder().path();
  separate->make(communicator_, device_, folder);
}

// Runs a forward to create the units: optimizer state cannot be loaded before they exist.
void RankRun::make_automatic_units() {
  const at::NoGradGuard no_grad;
  inputs_.model->loss(inputs_.train->batch({0}).to(device_));
  sharded_->cut_units();
}

void RankRun::save_config() const {
  if (is_first()) write_config(config_, (fs::path(config_.output.output_dir) / "resolved_config.json").string());
}

RunEnd RankRun::train(const std::optional<PlannedFigures>& plan) {
  TrainBatches batches(*inputs_.train, {.global = global_batch_of(config_, communicator_->size()),
                                        .rank = communicator_->rank(),
                                        .shuffle = config_.data.shuffle,
                                        .seed = static_cast<uint64_t>(config_.steps.seed),
                                        .device = device_});
  TrainingRun run(config_, *inputs_.model, *sharded_, batches);
  RunCheckpoints checkpoints(
      {config_, module(), *sharded_, batches, *inputs_.train, run, report_, communicator_, device_});
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
  MeasuredFigures figures{.categories = sharded_->diagnostics().memory(),
                          .bytes = base::peak_allocated_bytes(device_).value_or(report_.peak_memory()),
                          .step_seconds = clock.seconds()};
  for (MemoryCategory& category : run.memory()) figures.categories.push_back(std::move(category));
  return figures;
}

RunEnd RankRun::take_steps(int64_t begin, TrainingRun& run, RunCheckpoints& checkpoints, StepClock* clock) {
  StepTrace trace(config_.trace, *sharded_, *communicator_, config_.steps.max_steps - begin,
                  [&run] { return run.memory(); });
  if (config_.trace.path && !trace.traces()) report_.say("no trace: training ends before trace_first_step");
  if (begin >= config_.steps.max_steps) {
    report_.say(c10::str("nothing is left to train: max_steps is ", config_.steps.max_steps));
  }
  const auto take_step = [&] { return clock ? clock->timed([&] { return run.step(); }) : run.step(); };
  for (int64_t step = begin + 1; step <= config_.steps.max_steps; ++step) {
    trace.before_step(step - begin);
    report_.after_step(step, explained(take_step, [&] { return run.memory(); }));
    if (step == begin + 1 && config_.sharding.wrap_policy == UnitsBy::kAutoUnits) {
      report_.say(c10::str("made ", sharded_->diagnostics().stats().units, " units from the execution order"));
    }
    if (const std::string text = trace.after_step(step - begin); !text.empty()) report_.say(text);
    if (checkpoints.after_step(step)) return RunEnd::kTerminated;
  }
  checkpoints.finish();
  unwritten_ = {checkpoints.failure(), trace.finish()};
  return RunEnd::kFinished;
}

void RankRun::evaluate_model() {
  sharded_->set_full_precision(config_.precision.full_precision_in_eval);
  const double loss = explained(
      [&] { return evaluate(*inputs_.model, *inputs_.eval, config_.data.eval_batch_size, *communicator_, device_); },
      [] { return std::vector<MemoryCategory>{}; });
  sharded_->set_full_precision(false);
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
  save_folder(path, inputs_.model_config, *inputs_.model, *sharded_, *communicator_, options);
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
    check_plan_is_of(*request.plan, environment.world_size, choice.device, parameter_count(inputs.model->module()));
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
