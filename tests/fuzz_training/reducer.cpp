#include "fuzz_training/reducer.h"

#include <functional>
#include <vector>

#include "fuzz_training/isolate.h"
#include "fuzz_training/rules.h"

namespace fsdp::fuzz {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Works on the JSON, in which every field and every element that can be left out is a step of its own.
class Reducer {
 public:
  Reducer(const Case& training, const Verdict& failure, const ReduceLimits& limits)
      : best_(to_json(training)), failure_(failure), limits_(limits), end_(Clock::now() + limits.whole) {}

  // Until nothing more can be left out.
  Case run() {
    bool smaller = true;
    while (smaller && Clock::now() < end_) {
      smaller = cut_ranks() || lift_groups();
      smaller = shrink(json::json_pointer()) || smaller;
      smaller = lower_numbers() || smaller;
    }
    return case_from_json(best_);
  }
  const Verdict& failure() const { return failure_; }

 private:
  // Takes the candidate when it fails in the same way.
  bool try_case(const json& candidate) {
    if (candidate == best_ || Clock::now() >= end_) return false;
    const Case training = case_from_json(candidate);
    if (objection(training)) return false;
    const Verdict verdict = run_isolated(training, limits_.one_case);
    if (verdict.passed || verdict.way != failure_.way) return false;
    best_ = to_json(training);
    failure_ = verdict;
    return true;
  }

  bool try_change(const std::function<void(json&)>& change) {
    json candidate = best_;
    change(candidate);
    return try_case(candidate);
  }

  // Leaves out what is at this place, or else parts of it. Later elements first, so that indices stay valid.
  bool shrink(const json::json_pointer& place) {
    if (!best_.contains(place)) return false;  // what is left became the default
    bool smaller = false;
    const json here = best_.at(place);
    if (here.is_object()) {
      for (const auto& [name, value] : here.items()) {
        const auto inner = place / name;
        if (!best_.contains(inner)) continue;
        if (try_change([&](json& text) { text.at(place).erase(name); })) {
          smaller = true;
        } else if (value.is_structured()) {
          smaller = shrink(inner) || smaller;
        }
      }
    } else if (here.is_array()) {
      smaller = shrink_list(place, here.size());
    }
    return smaller;
  }

  bool shrink_list(const json::json_pointer& place, size_t size) {
    bool smaller = false;
    for (size_t i = size; i-- > 0;) {
      if (!best_.contains(place / i)) continue;
      if (try_change([&](json& text) { text.at(place).erase(i); })) {
        smaller = true;
      } else if (best_.at(place).at(i).is_structured()) {
        smaller = shrink(place / i) || smaller;
      }
    }
    return smaller;
  }

  bool cut_ranks() {
    for (int64_t ranks = 1; ranks < case_from_json(best_).ranks; ++ranks) {
      if (try_change([&](json& text) { text["ranks"] = ranks; })) return true;
    }
    return false;
  }

  // Puts the layers of a group of the root in its place.
  bool lift_groups() {
    const json layers = best_.contains("/model/layers"_json_pointer) ? best_["model"]["layers"] : json::array();
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!layers[i].contains("children")) continue;
      json lifted = json::array();
      for (size_t k = 0; k < layers.size(); ++k) {
        if (k != i) {
          lifted.push_back(layers[k]);
        } else {
          for (const json& child : layers[i]["children"]) lifted.push_back(child);
        }
      }
      if (try_change([&](json& text) { text["model"]["layers"] = lifted; })) return true;
    }
    return false;
  }

  bool lower_numbers() {
    bool smaller = false;
    for (const char* name : {"width", "batch"}) {
      if (!best_.contains("model") || !best_["model"].contains(name)) continue;
      for (int64_t value = 2; value < best_["model"][name].get<int64_t>() && !smaller; ++value) {
        smaller = try_change([&](json& text) { text["model"][name] = value; });
      }
    }
    return smaller;
  }

  json best_;
  Verdict failure_;
  const ReduceLimits limits_;
  const Clock::time_point end_;
};

}  // namespace

Case reduce(const Case& training, Verdict& failure, const ReduceLimits& limits) {
  Reducer reducer(training, failure, limits);
  const Case result = reducer.run();
  failure = reducer.failure();
  return result;
}

}  // namespace fsdp::fuzz
