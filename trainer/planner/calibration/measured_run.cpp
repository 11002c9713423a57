#include "planner/calibration/measured_run.h"

#include <chrono>

#include "data/batches.h"
#include "fsdp/fully_shard.h"
#include "loop/training_run.h"
#include "loop/whole_passes.h"
#include "setup/sharding_options.h"
#include "setup/training_inputs.h"

namespace fsdp::planner {
namespace {

// The optimizer makes its state in the first step, the order of units becomes known in the second; caches fill.
constexpr int kFirstSteps = 2;

// Returns seconds.
double timed_step(trainer::TrainingRun& run, Communicator& world, uint64_t number) {
  world.barrier({"calibration", number, Pass::kUser});
  const auto began = std::chrono::steady_clock::now();
  run.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

MeasuredRun measure_run(const trainer::Config& config, const MeasureOptions& options) {
  const trainer::TrainingInputs inputs = trainer::open_training_inputs(config, options.group->size());
  const auto sharded =
      fully_shard(inputs.model->module(), trainer::sharding_options(config, inputs.model->module(), options.group));
  inputs.model->module().train();
  trainer::TrainBatches batches(*inputs.train, {.global = {config.data.train_batch_size, options.group->size(),
                                                           config.steps.gradient_accumulation_steps},
                                                .rank = options.group->rank(),
                                                .shuffle = false});
  trainer::WholePasses passes(config.steps, *inputs.model, *sharded);
  trainer::TrainingRun run(config, passes, inputs.model->separate_parameters(), batches);
  uint64_t number = 0;
  for (int step = 0; step < kFirstSteps; ++step) timed_step(run, *options.world, number++);
  MeasuredRun measured;
  for (int step = 0; step < options.steps; ++step) {
    measured.seconds.push_back(timed_step(run, *options.world, number++));
  }
  if (options.observed_steps == 0) return measured;
  OperatorTimes operators;
  for (int step = 0; step < options.observed_steps; ++step) {
    timed_step(run, *options.world, number++);
    measured.operators.push_back(operators.take());
  }
  return measured;
}

}  // namespace fsdp::planner
