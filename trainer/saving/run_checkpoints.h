// The checkpoints of a run while it trains: loads one, saves others, removes old ones, leaves on signals.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "saving/run_record.h"
#include "saving/stop_signal.h"
#include "state/async_saver.h"
#include "state/training_state.h"
#include "training/run_report.h"
#include "training/training_run.h"

namespace fsdp::trainer {

// What a checkpoint is made of, on this rank.
struct RunParts {
  const Config& config;
  torch::nn::Module& model;
  ShardedModule& sharded;
  TrainBatches& batches;
  const Dataset& dataset;
  TrainingRun& run;
  RunReport& report;
  std::shared_ptr<Communicator> communicator;
  c10::Device device;
};

// All functions are collective.
class RunCheckpoints {
 public:
  // What `parts` refers to must outlive this object.
  explicit RunCheckpoints(const RunParts& parts);

  // Model, optimizer, schedule, loss scaling, data, random numbers. Returns the step that the checkpoint was saved
  // after, and says what differs from then. Errors: those of load_training_state; model and optimizer then hold
  // anything.
  int64_t load(const std::filesystem::path& checkpoint);

  // After each step, with save_steps: saves if it is time to. Whether to leave, as a rank was sent a StopSignal; a
  // checkpoint of this step is there then. A save that fails is said, and training goes on.
  bool after_step(int64_t step);

  // Behind the last step: waits for the save that is under way.
  void finish();
  // Why the newest checkpoint that was to be saved is not there; empty: it is.
  const std::string& failure() const { return last_failure_; }

 private:
  // Its name; empty: no rank has got one.
  std::string signal_of_any_rank();
  void save(int64_t step);
  void note_saved(const std::filesystem::path& path);
  // Runs it; a save that failed is noted, other errors are thrown.
  void attempt(const std::function<void()>& part_of_save);
  TrainingState state() const;
  RunRecord record(int64_t step);
  const std::string& data_checksum_of_rank_0();
  void restore(const RunRecord& record);
  // Of a checkpoint of another program. `options`: of its parameter groups.
  void begin_rest(const RunRecord& record, const std::string& options);
  void seed_anew(const RunRecord& record);
  void restore_random_state(const RunRecord& record, const std::map<std::string, at::Tensor>& state);

  RunParts parts_;
  std::unique_ptr<OptimizerState> optimizer_;
  AsyncSaver saver_;
  std::optional<StopSignal> stop_signal_;
  std::string data_checksum_;  // empty: nobody has asked for it
  std::string last_failure_;   // of the newest save; empty: it did not fail
};

}  // namespace fsdp::trainer
