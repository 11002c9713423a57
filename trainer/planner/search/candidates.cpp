#include "planner/search/candidates.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "config/errors.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::Config;

Verdict verdict_named(const std::string& name) {
  for (const Verdict verdict : {Verdict::kFits, Verdict::kTight, Verdict::kDoesNotFit}) {
    if (name == to_string(verdict)) return verdict;
  }
  return Verdict::kUnknown;
}

Speed speed_in(const ordered_json& plan) {
  const auto time = plan.find("time");
  if (time == plan.end()) return Speed::kMicroBatch;
  return time->contains("tokens_per_second") ? Speed::kTokensPerSecond : Speed::kSamplesPerSecond;
}

}  // namespace

Candidates::Candidates(const SearchInput& input) : input_(input) { plan_config(); }

void Candidates::plan_config() {
  const Config config = input_.config({});
  const std::vector<Answer> answers = input_.plan_all({config});
  plans_ = 1;
  const Answer& answer = answers.front();
  if (!answer.refusal.empty()) throw trainer::ConfigError(answer.refusal);
  if (!answer.failure.empty()) throw std::runtime_error(answer.failure);
  first_plan_ = answer.result;
  speed_ = speed_in(first_plan_);
  parameters_ = first_plan_.at("model").at("parameters");
  known_[input_.space.config()].least = least_memory(config, input_.cluster, parameters_);
  add({input_.space.config(), input_.space.config_batch}, first_plan_);
}

void Candidates::plan(const std::vector<Candidate>& wanted) {
  std::vector<Candidate> asked;
  std::vector<Config> configs;
  std::set<std::pair<Combination, size_t>> seen;
  for (const Candidate& candidate : wanted) {
    if (state(candidate.combination) != CombinationState::kOpen || find(candidate) != nullptr) continue;
    if (!seen.emplace(candidate.combination, candidate.batch).second) continue;
    if (plans_ == input_.most_plans) {
      is_cut_ = true;
      break;
    }
    ++plans_;
    configs.push_back(input_.config(input_.space.overrides(candidate.combination, candidate.batch)));
    asked.push_back(candidate);
  }
  if (asked.empty()) return;
  const std::vector<Answer> answers = input_.plan_all(configs);
  for (size_t i = 0; i < asked.size(); ++i) take(asked[i], answers[i]);
}

std::optional<CombinationState> Candidates::state(const Combination& combination) {
  if (const auto found = known_.find(combination); found != known_.end()) return found->second.state;
  Known known;
  try {
    const Config config = input_.config(input_.space.overrides(combination, input_.space.config_batch));
    if (is_without_effect(config, combination)) return std::nullopt;
    known.least = least_memory(config, input_.cluster, parameters_);
    if (!can_fit(known.least)) known.state = CombinationState::kSkipped;
  } catch (const trainer::ConfigError&) {
    known.state = CombinationState::kRefused;
  }
  return known_.emplace(combination, std::move(known)).first->second.state;
}

size_t Candidates::count(CombinationState state) const {
  return static_cast<size_t>(
      std::count_if(known_.begin(), known_.end(), [&](const auto& entry) { return entry.second.state == state; }));
}

const PlannedCandidate* Candidates::find(const Candidate& candidate) const {
  const auto known = known_.find(candidate.combination);
  if (known == known_.end()) return nullptr;
  const auto found = known->second.planned.find(candidate.batch);
  return found == known->second.planned.end() ? nullptr : &planned_[found->second];
}

std::vector<const PlannedCandidate*> Candidates::of(const Combination& combination) const {
  std::vector<const PlannedCandidate*> plans;
  const auto known = known_.find(combination);
  if (known == known_.end()) return plans;
  for (const auto& [batch, index] : known->second.planned) plans.push_back(&planned_[index]);
  return plans;
}

int64_t Candidates::least_bytes(const Combination& combination) const {
  const LeastMemory& least = known_.at(combination).least;
  return input_.cluster.device ? least.device : least.host;
}

void Candidates::take(const Candidate& candidate, const Answer& answer) {
  Known& known = known_[candidate.combination];
  if (!answer.refusal.empty()) {
    known.state = CombinationState::kRefused;
  } else if (!answer.failure.empty()) {
    known.state = CombinationState::kFailed;
    if (first_failure_.empty()) first_failure_ = answer.failure;
  } else {
    add(candidate, answer.result);
  }
}

void Candidates::add(const Candidate& candidate, const ordered_json& plan) {
  const ordered_json& memory = plan.at("memory");
  PlannedCandidate planned{.candidate = candidate,
                           .overrides = input_.space.overrides(candidate.combination, candidate.batch),
                           .verdict = verdict_named(memory.at("verdict")),
                           .speed = speed_of(plan, candidate.batch),
                           .host = memory.at("host").at("per_host")};
  if (memory.contains("device")) planned.device = memory["device"].at("total").get<int64_t>();
  if (speed_ != Speed::kMicroBatch) planned.step_seconds = plan.at("time").at("step_seconds").get<double>();
  known_[candidate.combination].planned[candidate.batch] = planned_.size();
  planned_.push_back(std::move(planned));
}

// Without shards, nothing is gathered.
bool Candidates::is_without_effect(const Config& config, const Combination& combination) const {
  if (config.sharding.strategy != ShardingStrategy::kNoShard) return false;
  for (size_t i = 0; i < combination.size(); ++i) {
    if (combination[i] != 0 && input_.space.dimensions[i].of_gathers) return true;
  }
  return false;
}

bool Candidates::can_fit(const LeastMemory& least) const {
  const bool device = !input_.cluster.device || least.device <= input_.cluster.device->memory;
  return device && (!input_.host_memory || least.host <= *input_.host_memory);
}

double Candidates::speed_of(const ordered_json& plan, size_t batch) const {
  if (speed_ == Speed::kTokensPerSecond) return plan.at("time").at("tokens_per_second");
  if (speed_ == Speed::kSamplesPerSecond) return plan.at("time").at("samples_per_second");
  return static_cast<double>(input_.space.batches[batch].samples);
}

}  // namespace fsdp::planner
