// A program for tests: trains for some steps with real ranks over Gloo or shared memory, and prints what a plan has to
// predict.
//
//   planner_real_ranks RUNS
//
// RUNS: a JSON file with a list of {"config", "ranks", "rank", "steps", "document_tokens" (may be missing)}. Prints a
// JSON list with the figures of one rank of each run: "groups" (the ranks of each, and its collectives in order) and
// "memory" (after each step, bytes by category: current, peak, reserved).
#include <cstdio>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/testing/recording_communicator.h"
#include "loop/make_passes.h"
#include "loop/training_run.h"
#include "models/documents.h"
#include "planner/testing/small_models.h"
#include "setup/rank_groups.h"
#include "setup/sharded_parts.h"
#include "setup/training_inputs.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::planner {
namespace {

using comm::RecordingCommunicator;
using Recorded = std::shared_ptr<RecordingCommunicator>;

nlohmann::json texts(const RecordingCommunicator& group) {
  nlohmann::json lines = nlohmann::json::array();
  for (const comm::CollectiveEvent& event : group.events()) {
    lines.push_back(to_string(event) + (event.twin ? " (twin)" : ""));
  }
  return lines;
}

// All groups of the rank, in the order in which they were made: the ranks of each, and its collectives.
nlohmann::json groups_of(const Recorded& world) {
  std::vector<Recorded> groups = world->subgroups();
  groups.insert(groups.begin(), world);
  nlohmann::json documents = nlohmann::json::array();
  for (const Recorded& group : groups) {
    nlohmann::json ranks = nlohmann::json::array();
    for (int rank = 0; rank < group->size(); ++rank) ranks.push_back(group->world_rank(rank));
    documents.push_back({{"ranks", std::move(ranks)}, {"collectives", texts(*group)}});
  }
  return documents;
}

nlohmann::json memory_of(const trainer::ShardedParts& parts, const trainer::TrainingRun& run) {
  nlohmann::json memory;
  const auto add = [&](const std::vector<MemoryCategory>& categories) {
    for (const MemoryCategory& category : categories) {
      memory[category.name] = {category.current, category.peak, category.reserved};
    }
  };
  add(trainer::memory_of(parts));
  add(run.memory());
  return memory;
}

// The ranks are threads, which have generators of random numbers in common.
trainer::TrainingInputs open_inputs(const trainer::Config& config, int ranks) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return trainer::open_training_inputs(config, ranks);
}

nlohmann::json train(const trainer::Config& config, const std::shared_ptr<Communicator>& ranks, int steps) {
  trainer::TrainingInputs inputs = open_inputs(config, ranks->size());
  const std::vector<std::string> parameters = trainer::parameter_names(inputs.model->module());
  const auto world = std::make_shared<RecordingCommunicator>(ranks);
  trainer::RankGroups groups = trainer::make_rank_groups(config, world);
  const trainer::ShardedParts parts = trainer::shard_parts(config, inputs, groups, c10::kCPU, false);
  for (torch::nn::Module* module : trainer::modules_of(parts)) module->train();
  trainer::TrainBatches batches(*inputs.train, {.global = {config.data.train_batch_size, groups.data->size(),
                                                           config.steps.gradient_accumulation_steps},
                                                .rank = groups.data->rank()});
  const auto passes = trainer::make_passes(config.steps, inputs, groups, parts, parameters);
  trainer::TrainingRun run(config, *passes, inputs.model->separate_parameters(), batches);
  nlohmann::json result;
  for (int step = 0; step < steps; ++step) {
    run.step();
    result["memory"].push_back(memory_of(parts, run));
  }
  result["groups"] = groups_of(world);
  return result;
}

nlohmann::json train_on(const nlohmann::json& about) {
  const trainer::Config config = read_json(about.at("config"));
  models::assume_document_length(about.value("document_tokens", int64_t{0}));
  nlohmann::json wanted;
  testing::run_ranks(about.at("ranks"),
                     [&](const std::shared_ptr<Communicator>& group) {
                       nlohmann::json own = train(config, group, about.at("steps"));
                       if (group->rank() == about.at("rank")) wanted = std::move(own);
                     },
                     {.communicator = config.communication.backend == "gloo" ? "gloo" : "shm"});
  return wanted;
}

}  // namespace
}  // namespace fsdp::planner

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  nlohmann::json results;
  for (const nlohmann::json& run : nlohmann::json::parse(std::ifstream(argv[1]))) {
    results.push_back(fsdp::planner::train_on(run));
  }
  std::printf("%s\n", results.dump().c_str());
}
