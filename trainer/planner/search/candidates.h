// The candidates of a search that were planned, and the combinations of choices that were skipped or refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "planner/memory/forecast.h"
#include "planner/run/child_answers.h"
#include "planner/search/space.h"
#include "planner/search/state_bound.h"

namespace fsdp::planner {

// The measure that is compared: the first that plans have. Without times, the larger micro-batch counts as the faster.
enum class Speed : uint8_t { kTokensPerSecond, kSamplesPerSecond, kMicroBatch };

struct SearchInput {
  SearchSpace space;
  Cluster cluster;
  std::optional<int64_t> host_memory;  // bytes of one host; must be known for ranks on CPUs
  size_t most_plans = 1;

  // Returns the config with these overrides. Throws a ConfigError if they contradict one another.
  std::function<trainer::Config(const Overrides&)> config;
  // Plans these configs.
  std::function<std::vector<Answer>(const std::vector<trainer::Config>&)> plan_all;
};

// A micro-batch, by its index, of a combination.
struct Candidate {
  Combination combination;
  size_t batch = 0;
};

// The figures of one plan.
struct PlannedCandidate {
  Candidate candidate;
  Overrides overrides;
  Verdict verdict = Verdict::kUnknown;
  double speed = 0;
  std::optional<double> step_seconds = {};
  std::optional<int64_t> device = {};  // bytes of each device; none for ranks on CPUs
  int64_t host = 0;                    // bytes of each host

  // The bytes that grow with the batch: of a device, or of the host of ranks on CPUs.
  int64_t bytes() const { return device.value_or(host); }
};

enum class CombinationState : uint8_t {
  kOpen,
  kSkipped,  // its shards alone do not fit
  kRefused,  // by the config or the model
  kFailed,   // a plan of it failed
};

class Candidates {
 public:
  // Plans the config as it is. Throws as make_plan does if it cannot be planned. `input` must outlive this object.
  explicit Candidates(const SearchInput& input);

  // Plans those that are not planned yet and whose combinations are open, in their order, as far as most_plans allows.
  void plan(const std::vector<Candidate>& wanted);

  // Returns the state of a combination, and computes it first if it is new. Nothing: it equals another combination,
  // because it changes gathers where there are none.
  std::optional<CombinationState> state(const Combination& combination);
  // Returns how many combinations have this state.
  size_t count(CombinationState state) const;

  // In the order of planning; the config as it is comes first.
  const std::vector<PlannedCandidate>& planned() const { return planned_; }
  // Returns the plan of a candidate; null if it has none.
  const PlannedCandidate* find(const Candidate& candidate) const;
  // Returns the plans of all batches of a combination.
  std::vector<const PlannedCandidate*> of(const Combination& combination) const;

  // The least that a plan of this open combination can need, of the memory that PlannedCandidate::bytes counts.
  int64_t least_bytes(const Combination& combination) const;

  Speed speed() const { return speed_; }
  const nlohmann::ordered_json& first_plan() const { return first_plan_; }
  const std::string& first_failure() const { return first_failure_; }
  bool is_cut() const { return is_cut_; }  // by most_plans

 private:
  struct Known {
    CombinationState state = CombinationState::kOpen;
    LeastMemory least;
    std::map<size_t, size_t> planned;  // from a batch to an index into planned_
  };
  void plan_config();
  void take(const Candidate& candidate, const Answer& answer);
  void add(const Candidate& candidate, const nlohmann::ordered_json& plan);
  bool is_without_effect(const trainer::Config& config, const Combination& combination) const;
  bool can_fit(const LeastMemory& least) const;
  double speed_of(const nlohmann::ordered_json& plan, size_t batch) const;

  const SearchInput& input_;
  std::map<Combination, Known> known_;
  std::vector<PlannedCandidate> planned_;
  nlohmann::ordered_json first_plan_;
  int64_t parameters_ = 0;
  Speed speed_ = Speed::kMicroBatch;
  size_t plans_ = 0;
  std::string first_failure_;
  bool is_cut_ = false;
};

}  // namespace fsdp::planner
