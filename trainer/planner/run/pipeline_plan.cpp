#include "planner/run/pipeline_plan.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "config/errors.h"
#include "planner/run/child_answers.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

constexpr const char* kThisHost = "127.0.0.1";
// A rank waits for those whose plans take longer.
constexpr std::chrono::hours kTimeout{12};

using Store = c10::intrusive_ptr<c10d::TCPStore>;

// `port`: of the server; 0: becomes the server, at a port that is free.
Store open_store(uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = port == 0;
  options.waitWorkers = false;
  options.timeout = kTimeout;
  return c10::make_intrusive<c10d::TCPStore>(kThisHost, options);
}

void throw_if_failed(const Answer& answer) {
  if (!answer.refusal.empty()) throw trainer::ConfigError(answer.refusal);
  if (!answer.failure.empty()) throw std::runtime_error(answer.failure);
}

// Makes the plans of all ranks. The first one that fails ends the others, which would wait for it.
std::vector<Answer> plans_of(size_t count, const std::function<ordered_json(int, PlannedPeers&)>& plan) {
  const Store server = open_store(0);
  const uint16_t port = server->getPort();
  const auto plan_one = [&](size_t index) {
    const auto number = static_cast<int>(index);
    PlannedPeers peers(number, static_cast<int>(count), open_store(port));
    return plan(number, peers);
  };
  return answers_of_children(count, count, plan_one, throw_if_failed);
}

int64_t bytes_of(const ordered_json& document) { return document.at("stage").at("bytes").get<int64_t>(); }

}  // namespace

ordered_json plan_pipeline(const PipelineRanks& ranks,
                           const std::function<ordered_json(int rank, PlannedPeers& peers)>& plan) {
  const int place = ranks.chosen.value_or(0) % ranks.of_stage;
  std::vector<Answer> answers = plans_of(static_cast<size_t>(ranks.stages), [&](int index, PlannedPeers& peers) {
    return plan(index * ranks.of_stage + place, peers);
  });
  const auto largest = std::max_element(answers.begin(), answers.end(), [](const Answer& a, const Answer& b) {
    return bytes_of(a.result) < bytes_of(b.result);
  });
  const auto shown = ranks.chosen ? answers.begin() + *ranks.chosen / ranks.of_stage : largest;
  ordered_json of_ranks = ordered_json::array();
  for (Answer& answer : answers) of_ranks.push_back(answer.result.at("stage"));
  ordered_json document = std::move(shown->result);
  document.erase("stage");
  document["pipeline"] = std::move(of_ranks);
  return document;
}

}  // namespace fsdp::planner
