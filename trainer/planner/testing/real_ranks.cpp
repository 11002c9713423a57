// A program for tests: trains for some steps with real ranks over Gloo or shared memory, and prints what a plan has to
// predict.
//
//   planner_real_ranks RUNS
//
// RUNS: a JSON file with a list of {"config", "ranks", "steps"}. Prints a JSON list of what rank 0 saw in each run:
// "collectives" (for each group, in order) and "memory" (after each step, bytes by category: current, peak, reserved).
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/testing/recording_communicator.h"
#include "loop/training_run.h"
#include "loop/whole_passes.h"
#include "planner/testing/small_models.h"
#include "setup/rank_groups.h"
#include "setup/sharding_options.h"
#include "setup/split_model.h"
#include "setup/training_inputs.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::planner {
namespace {

using comm::RecordingCommunicator;
using Recorded = std::shared_ptr<RecordingCommunicator>;

Recorded recorded(const std::shared_ptr<Communicator>& group) {
  return group ? std::make_shared<RecordingCommunicator>(group) : nullptr;
}

nlohmann::json texts(const Recorded& group) {
  nlohmann::json lines = nlohmann::json::array();
  for (const comm::CollectiveEvent& event : group->events()) {
    lines.push_back(to_string(event) + (event.twin ? " (twin)" : ""));
  }
  return lines;
}

nlohmann::json memory_of(ShardedModule& sharded, const trainer::TrainingRun& run) {
  nlohmann::json memory;
  const auto add = [&](const std::vector<MemoryCategory>& categories) {
    for (const MemoryCategory& category : categories) {
      memory[category.name] = {category.current, category.peak, category.reserved};
    }
  };
  add(sharded.diagnostics().memory());
  add(run.memory());
  return memory;
}

nlohmann::json train(const trainer::Config& config, const std::shared_ptr<Communicator>& ranks, int steps) {
  trainer::TrainingInputs inputs = trainer::open_training_inputs(config, ranks->size());
  trainer::RankGroups groups = trainer::make_rank_groups(config, ranks);
  Options options = trainer::sharding_options(config, inputs.model->module(), groups.mesh ? nullptr : ranks);
  if (groups.mesh) options.mesh = groups.mesh->data_parallel();
  const ProcessMesh mesh = options.mesh.value_or(ProcessMesh{});
  const Recorded world = recorded(groups.data), shard = recorded(mesh.shard), replicate = recorded(mesh.replicate);
  options.communicator = groups.mesh ? nullptr : world;
  if (options.mesh) options.mesh = ProcessMesh{world, shard, replicate};
  const Recorded tensor = groups.mesh ? recorded(groups.mesh->group("tp")) : nullptr;
  if (tensor) options.tensor_parallel = trainer::split_over(tensor, config, *inputs.model);
  const auto sharded = fully_shard(inputs.model->module(), options);
  inputs.model->module().train();
  trainer::TrainBatches batches(*inputs.train, {.global = {config.data.train_batch_size, groups.data->size(),
                                                           config.steps.gradient_accumulation_steps},
                                                .rank = groups.data->rank()});
  trainer::WholePasses passes(config.steps, *inputs.model, *sharded);
  trainer::TrainingRun run(config, passes, inputs.model->separate_parameters(), batches);
  nlohmann::json result;
  for (int step = 0; step < steps; ++step) {
    run.step();
    result["memory"].push_back(memory_of(*sharded, run));
  }
  result["collectives"]["world"] = texts(world);
  if (shard) {
    result["collectives"]["shard"] = texts(shard);
    result["collectives"]["replicate"] = texts(replicate);
  }
  if (tensor) result["collectives"]["tensor"] = texts(tensor);
  return result;
}

nlohmann::json train_on(int ranks, const trainer::Config& config, int steps) {
  nlohmann::json first;
  testing::run_ranks(ranks,
                     [&](const std::shared_ptr<Communicator>& group) {
                       nlohmann::json own = train(config, group, steps);
                       if (group->rank() == 0) first = std::move(own);
                     },
                     {.communicator = config.communication.backend == "gloo" ? "gloo" : "shm"});
  return first;
}

}  // namespace
}  // namespace fsdp::planner

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  nlohmann::json results;
  for (const nlohmann::json& run : nlohmann::json::parse(std::ifstream(argv[1]))) {
    results.push_back(
        fsdp::planner::train_on(run.at("ranks"), fsdp::planner::read_json(run.at("config")), run.at("steps")));
  }
  std::printf("%s\n", results.dump().c_str());
}
