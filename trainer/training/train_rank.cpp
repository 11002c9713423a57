#include "training/train_rank.h"

#include <ATen/Context.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

#include "base/out_of_memory.h"
#include "config/config_writer.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "training/evaluation.h"
#include "training/model_io.h"
#include "training/run_report.h"
#include "training/sharding_options.h"
#include "training/step_trace.h"
#include "training/training_inputs.h"
#include "training/training_run.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

// One rank's run, from the first step to the saved model.
class RankRun {
 public:
  RankRun(const Config& config, TrainingInputs inputs, const RankPlace& place);

  void save_config() const;
  void train();
  void evaluate_model();
  void save_model();

 private:
  // Runs `part`. When memory is wanting in it, the error says what holds how much.
  template <typename Part, typename Memory>
  auto explained(const Part& part, const Memory& memory) const;
  bool is_first() const { return communicator_->rank() == 0; }

  const Config& config_;
  TrainingInputs inputs_;
  c10::Device device_;
  std::shared_ptr<Communicator> communicator_;
  RunReport report_;
  std::shared_ptr<ShardedModule> sharded_;
};

template <typename Part, typename Memory>
auto RankRun::explained(const Part& part, const Memory& memory) const {
  try {
    return part();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    throw std::runtime_error(sharded_->explain_out_of_memory(error, memory()));
  }
}

GlobalBatch global_batch_of(const Config& config, int world_size) {
  return {config.train_batch_size, world_size, config.gradient_accumulation_steps};
}

StepWork work_of(const Config& config, const models::CausalLM& model, int world_size) {
  return {.tokens = global_batch_of(config, world_size).samples() * config.max_seq_length,
          .flops_per_token = model.flops_per_token(config.max_seq_length)};
}

RankRun::RankRun(const Config& config, TrainingInputs inputs, const RankPlace& place)
    : config_(config),
      inputs_(std::move(inputs)),
      device_(place.device),
      communicator_(place.communicator),
      report_(config, work_of(config, *inputs_.model, communicator_->size()), *communicator_, device_) {
  if (!place.text.empty()) report_.say(place.text);
  Options options = sharding_options(config, *inputs_.model, communicator_, device_);
  if (config.sync_module_states) read_on_rank_0(inputs_.folder, *inputs_.model, options);
  sharded_ = fully_shard(*inputs_.model, options);
  sharded_->verify_plan();
  if (config.cpu_offload && device_.is_cpu()) {
    report_.say("cpu_offload: shards are in host memory already, as training runs on the CPU");
  }
  if (config.offload_path) report_.say("shards and optimizer state are in files in " + *config.offload_path);
  if (!config.sync_module_states) load_into_shards(inputs_.folder, *sharded_);
  inputs_.model->train();
}

void RankRun::save_config() const {
  if (is_first()) write_config(config_, (fs::path(config_.output_dir) / "resolved_config.json").string());
}

void RankRun::train() {
  TrainBatches batches(inputs_.train, {.global = global_batch_of(config_, communicator_->size()),
                                       .rank = communicator_->rank(),
                                       .shuffle = config_.shuffle,
                                       .seed = static_cast<uint64_t>(config_.seed),
                                       .device = device_});
  TrainingRun run(config_, *inputs_.model, *sharded_, batches);
  StepTrace trace(config_, *sharded_, *communicator_);
  report_.start();
  for (int64_t step = 1; step <= config_.max_steps; ++step) {
    trace.before_step(step);
    report_.after_step(step, explained([&] { return run.step(); }, [&] { return run.memory(); }));
    if (step == 1 && config_.wrap_policy == "auto_units") {
      report_.say(c10::str("made ", sharded_->stats().units, " units from the execution order"));
    }
    if (trace.after_step(step)) report_.say("wrote a trace to " + *config_.trace_path);
  }
}

void RankRun::evaluate_model() {
  sharded_->set_full_precision(config_.full_precision_in_eval);
  const double loss = explained(
      [&] { return evaluate(*inputs_.model, *inputs_.eval, config_.eval_batch_size, *communicator_, device_); },
      [] { return std::vector<MemoryCategory>{}; });
  sharded_->set_full_precision(false);
  report_.after_evaluation(config_.max_steps, loss);
}

void RankRun::save_model() {
  const fs::path path = final_folder(config_);
  save_folder(path, inputs_.folder, *sharded_, is_first());
  report_.say("saved the model to " + path.string());
}

}  // namespace

void train_rank(const Config& config, const RankEnvironment& environment, const RunRequest& request) {
  const PlaceChoice choice = choose_place(config, environment, places_available());
  TrainingInputs inputs = open_training_inputs(config, environment.world_size);
  train_at(config, std::move(inputs), take_place(choice, environment), request);
}

void train_at(const Config& config, TrainingInputs inputs, const RankPlace& place, const RunRequest& request) {
  // Random operators of the model (dropout) differ from rank to rank, as the samples do.
  at::manual_seed(static_cast<uint64_t>(config.seed) + static_cast<uint64_t>(place.communicator->rank()));
  RankRun run(config, std::move(inputs), place);
  if (request.save_config) run.save_config();
  run.train();
  if (config.do_eval) run.evaluate_model();
  if (config.save_final) run.save_model();
}

}  // namespace fsdp::trainer
