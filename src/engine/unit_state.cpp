#include "engine/unit_state.h"

#include <c10/util/Exception.h>

namespace fsdp::engine {

const char* to_string(UnitState state) {
  switch (state) {
    case UnitState::kSharded:
      return "kSharded";
    case UnitState::kGathering:
      return "kGathering";
    case UnitState::kUnsharded:
      return "kUnsharded";
  }
  TORCH_CHECK(false, "fsdp: unknown unit state");
}

const char* to_string(GradientState state) {
  switch (state) {
    case GradientState::kNone:
      return "kNone";
    case GradientState::kCapturing:
      return "kCapturing";
    case GradientState::kAccumulating:
      return "kAccumulating";
    case GradientState::kReducing:
      return "kReducing";
    case GradientState::kReduced:
      return "kReduced";
  }
  TORCH_CHECK(false, "fsdp: unknown gradient state");
}

const std::vector<std::pair<UnitState, UnitState>>& unit_transitions() {
  using enum UnitState;
  static const std::vector<std::pair<UnitState, UnitState>> table = {
      {kSharded, kGathering}, {kGathering, kUnsharded}, {kGathering, kSharded}, {kUnsharded, kSharded}};
  return table;
}

const std::vector<std::pair<GradientState, GradientState>>& gradient_transitions() {
  using enum GradientState;
  static const std::vector<std::pair<GradientState, GradientState>> table = {
      {kNone, kCapturing},    {kCapturing, kReducing},    {kReducing, kReduced},       {kReducing, kCapturing},
      {kReduced, kCapturing}, {kCapturing, kNone},        {kCapturing, kAccumulating}, {kAccumulating, kCapturing},
      {kAccumulating, kNone}, {kReducing, kAccumulating}, {kNone, kAccumulating}};
  return table;
}

}  // namespace fsdp::engine
