// Prints pipeline schedules as JSON, for test_pipeline_schedules.py. Reads requests from the standard input, each a
// line "NAME RANKS STAGES_PER_RANK MICRO_BATCHES", and answers each with a line: "passes" and "actions" (with
// communication) have a list of texts for each rank, "seconds", "bubble" and "in_flight" are of passes that take a
// second each; or "error".
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <c10/util/Exception.h>

#include "fsdp/pipeline_schedule.h"

namespace {

using nlohmann::json;

json texts_of(const fsdp::PipelineSchedule& schedule) {
  json ranks = json::array();
  for (const auto& order : schedule.of_rank) {
    json texts = json::array();
    for (const fsdp::PipelineAction& action : order) texts.push_back(to_string(action));
    ranks.push_back(texts);
  }
  return ranks;
}

json answer(const std::string& request) {
  std::istringstream words(request);
  std::string name;
  int ranks = 0, stages_per_rank = 0, micro_batches = 0;
  words >> name >> ranks >> stages_per_rank >> micro_batches;
  const fsdp::PipelineSchedule passes = fsdp::make_pipeline_schedule(name, ranks, stages_per_rank, micro_batches);
  const fsdp::PipelineSchedule actions = fsdp::with_communication(passes);
  const fsdp::PipelineScheduleFacts facts = fsdp::check_pipeline_schedule(actions);
  const auto stages = static_cast<size_t>(passes.stages());
  const fsdp::PipelineSimulation simulation = simulate_pipeline(passes, std::vector<fsdp::StageCosts>(stages));
  return {{"passes", texts_of(passes)},    {"actions", texts_of(actions)}, {"rank_of_stage", passes.rank_of_stage},
          {"seconds", simulation.seconds}, {"bubble", simulation.bubble},  {"in_flight", facts.most_in_flight}};
}

}  // namespace

int main() {
  for (std::string request; std::getline(std::cin, request);) {
    try {
      std::cout << answer(request) << "\n";
    } catch (const c10::Error& error) {
      std::cout << json{{"error", error.what_without_backtrace()}} << "\n";
    }
  }
}
