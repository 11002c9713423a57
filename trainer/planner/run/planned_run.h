// A training run on the planned device: the program's own model, sharding, steps and optimizer, on one rank of many.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "fsdp/trace.h"
#include "loop/training_run.h"
#include "planner/ranks/planned_communicator.h"
#include "planner/tape/tape.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"
#include "setup/training_inputs.h"

namespace fsdp::planner {

// The machine that is planned for.
struct PlanTarget {
  bool has_device = true;  // false: ranks compute on CPUs
  RankLayout layout;
  int rank = 0;                  // the rank that runs
  int threads = 0;               // of operators on the CPU; 0: as LibTorch chooses here
  int64_t matmul_workspace = 0;  // DeviceProfile::matmul_workspace; only for a device
  bool notes_accesses = false;   // Tape::note_accesses
  int64_t document_tokens = 0;   // with `attn_mask_type` `block_causal`: of each document
};

// The engine's memory after a step, by category (Diagnostics::memory), and that of the optimizer.
struct StepMemory {
  std::vector<MemoryCategory> categories;
};

// One for a process. The process plans from then on (planned_device.h).
class PlannedRun {
 public:
  // Makes and shards the model. Opens no data: samples are dummy ones of the shapes that the config gives. Throws a
  // ConfigError as `fsdp train` would.
  PlannedRun(const trainer::Config& config, const PlanTarget& target);
  ~PlannedRun();
  PlannedRun(const PlannedRun&) = delete;
  PlannedRun& operator=(const PlannedRun&) = delete;

  // Runs the next optimizer step.
  void step();

  // Notes what the engine does when, from the next step until stop_trace(). The times are those of the plan itself, and
  // say only between which entries of the tape something lies (Tape::times).
  void trace();
  Trace stop_trace();

  const Tape& tape() const { return tape_; }
  // The number of entries on the tape before each step, and after the last one.
  const std::vector<size_t>& step_bounds() const { return step_bounds_; }
  // After each step.
  const std::vector<StepMemory>& memory() const { return memory_; }
  // One, or those of the stages that the rank has.
  const trainer::ShardedParts& parts() const { return parts_; }
  // Null without a pipeline.
  const trainer::PipelineLayout* pipeline() const { return inputs_.pipeline ? &*inputs_.pipeline : nullptr; }
  // The model's "model_type" in its config.json.
  const std::string& model_type() const { return model_type_; }
  // "vocab_size" there; 0 if it has none.
  int64_t vocabulary() const { return vocabulary_; }
  // The elements of all parameters of the whole model, not sharded.
  int64_t parameters() const { return parameters_; }
  // The cost of one sample.
  const trainer::SampleWork& sample_work() const { return sample_work_; }
  // The ranks that take different samples.
  int64_t data_ranks() const { return groups_.data->size(); }
  // The units of the rank's parts.
  int64_t units() const;

 private:
  void open(const PlanTarget& target);
  void shard(const PlanTarget& target);

  trainer::Config config_;
  Tape tape_;
  c10::Device device_;
  std::string model_type_;
  int64_t vocabulary_ = 0;
  int64_t parameters_ = 0;
  trainer::SampleWork sample_work_;
  std::vector<std::string> parameter_names_;  // of the whole model
  trainer::RankGroups groups_;
  trainer::TrainingInputs inputs_;
  trainer::ShardedParts parts_;
  std::unique_ptr<trainer::TrainBatches> batches_;
  std::unique_ptr<trainer::StepPasses> passes_;
  std::unique_ptr<trainer::TrainingRun> run_;
  std::vector<size_t> step_bounds_;
  std::vector<StepMemory> memory_;
};

}  // namespace fsdp::planner
