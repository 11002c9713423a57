// The checkpoints of a run while it trains: loads one, saves others, removes old ones, stops the run on signals.
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
#include "loop/run_report.h"
#include "loop/training_run.h"
#include "saving/run_record.h"
#include "saving/stop_signal.h"
#include "state/async_saver.h"
#include "state/training_state.h"

namespace fsdp::trainer {

// The parts of a run on this rank that a checkpoint is made of.
struct RunParts {
  const Config& config;
  state::ModelParts model;
  std::vector<std::string> tied;  // parameters of which two of its parts have a copy
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
  // The objects that `parts` refers to must outlive this object.
  explicit RunCheckpoints(const RunParts& parts);

  // Restores model, optimizer, schedule, loss scaling, data position and random numbers. Returns the step after which
  // the checkpoint was saved, and reports the differences between that run and this one. Throws the errors of
  // load_training_state; model and optimizer are then in an undefined state.
  int64_t load(const std::filesystem::path& checkpoint);

  // Must be called after each step. With save_steps, saves a checkpoint if one is due. Returns whether the run must
  // stop because a rank received a signal (StopSignal); a checkpoint of this step then exists. A failed save is
  // reported, and training continues.
  bool after_step(int64_t step);

  // Must be called after the last step. Waits for a save that is under way.
  void finish();
  // Returns why the newest checkpoint that was due is missing, or an empty string if it was saved.
  const std::string& failure() const { return last_failure_; }

 private:
  // Returns the name of a signal that a rank has received, or an empty string if no rank has received one.
  std::string signal_of_any_rank();
  void save(int64_t step);
  void note_saved(const std::filesystem::path& path);
  // Runs `part_of_save`. Notes a failed save and lets other errors through.
  void attempt(const std::function<void()>& part_of_save);
  state::TrainingState state() const;
  RunRecord record(int64_t step);
  const std::string& data_checksum_of_rank_0();
  void restore(const RunRecord& record);
  // Initializes the state that a checkpoint of another program does not contain. `options`: the options of the
  // checkpoint's parameter groups.
  void begin_rest(const RunRecord& record, const std::string& options);
  void seed_anew(const RunRecord& record);
  void restore_random_state(const RunRecord& record, const std::map<std::string, at::Tensor>& state);

  RunParts parts_;
  std::unique_ptr<OptimizerState> optimizer_;
  state::AsyncSaver saver_;
  std::optional<StopSignal> stop_signal_;
  std::string data_checksum_;  // empty: not computed yet
  std::string last_failure_;   // of the newest save; empty: it has not failed
};

}  // namespace fsdp::trainer
