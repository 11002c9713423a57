#include "fuzz_training/reducer.h"

#include <functional>
#include <vector>

#include "fuzz_training/rules.h"

namespace fsdp::fuzz {
namespace {

using Place = Json::json_pointer;
using Clock = std::chrono::steady_clock;

// Works on the JSON, in which each field and each element can be removed separately.
class Reducer {
 public:
  Reducer(const Case& training, const Verdict& failure, const RunCase& run_case, std::chrono::seconds limit)
      : best_(to_json(training)), failure_(failure), run_case_(run_case), end_(Clock::now() + limit) {}

  // Reduces the case until nothing more can be removed.
  Case run() {
    bool smaller = true;
    while (smaller && Clock::now() < end_) {
      smaller = cut_ranks();
      smaller = lift_groups() || smaller;
      smaller = shrink(Place()) || smaller;
      smaller = lower_numbers() || smaller;
    }
    return case_from_json(best_);
  }
  const Verdict& failure() const { return failure_; }

 private:
  // Takes the candidate if it fails in the same way.
  bool try_case(const Json& candidate) {
    if (candidate == best_ || Clock::now() >= end_) return false;
    const Case training = case_from_json(candidate);
    if (objection(training)) return false;
    const Verdict verdict = run_case_(training);
    if (verdict.passed || verdict.way != failure_.way) return false;
    best_ = to_json(training);
    failure_ = verdict;
    return true;
  }

  bool try_change(const std::function<void(Json&)>& change) {
    Json candidate = best_;
    change(candidate);
    return try_case(candidate);
  }

  // Removes the value at this place, or else parts of it. Removes later elements first, so that indices stay valid.
  bool shrink(const Place& place) {
    if (!best_.contains(place)) return false;  // the rest became the default
    bool smaller = false;
    const Json here = best_.at(place);
    if (here.is_object()) {
      for (const auto& [name, value] : here.items()) {
        const auto inner = place / name;
        if (name == "ranks" || !best_.contains(inner)) continue;  // one rank is less than the default
        if (try_change([&, &name = name](Json& text) { text.at(place).erase(name); })) {
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

  bool shrink_list(const Place& place, size_t size) {
    bool smaller = false;
    for (size_t i = size; i-- > 0;) {
      if (!best_.contains(place / i)) continue;
      if (try_change([&](Json& text) { text.at(place).erase(i); })) {
        smaller = true;
      } else if (best_.at(place).at(i).is_structured()) {
        smaller = shrink(place / i) || smaller;
      }
    }
    return smaller;
  }

  bool cut_ranks() {
    for (int64_t ranks = 1; ranks < case_from_json(best_).ranks; ++ranks) {
      if (try_change([&](Json& text) { text["ranks"] = ranks; })) return true;
    }
    return false;
  }

  // Replaces a group of the root with the group's layers.
  bool lift_groups() {
    const Json layers = best_.contains(Place("/model/layers")) ? best_["model"]["layers"] : Json::array();
    for (size_t i = 0; i < layers.size(); ++i) {
      if (!layers[i].contains("children")) continue;
      Json lifted = Json::array();
      for (size_t k = 0; k < layers.size(); ++k) {
        if (k != i) {
          lifted.push_back(layers[k]);
        } else {
          for (const Json& child : layers[i]["children"]) lifted.push_back(child);
        }
      }
      if (try_change([&](Json& text) { text["model"]["layers"] = lifted; })) return true;
    }
    return false;
  }

  bool lower_numbers() {
    bool smaller = false;
    for (const char* name : {"width", "batch"}) {
      if (!best_.contains("model") || !best_["model"].contains(name)) continue;
      for (int64_t value = 2; value < best_["model"][name].get<int64_t>() && !smaller; ++value) {
        smaller = try_change([&](Json& text) { text["model"][name] = value; });
      }
    }
    return smaller;
  }

  Json best_;
  Verdict failure_;
  const RunCase& run_case_;
  const Clock::time_point end_;
};

}  // namespace

Case reduce(const Case& training, Verdict& failure, const RunCase& run_case, std::chrono::seconds limit) {
  Reducer reducer(training, failure, run_case, limit);
  const Case result = reducer.run();
  failure = reducer.failure();
  return result;
}

}  // namespace fsdp::fuzz
