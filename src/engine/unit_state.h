// The states of a unit and of a FlatParameter's gradient, and the legal transitions between them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace fsdp::engine {

enum class UnitState : uint8_t { kSharded, kGathering, kUnsharded };
enum class GradientState : uint8_t { kNone, kCapturing, kAccumulating, kReducing, kReduced };

const char* to_string(UnitState state);
const char* to_string(GradientState state);

// kGathering -> kSharded: the gather failed.
const std::vector<std::pair<UnitState, UnitState>>& unit_transitions();
// kReducing -> kCapturing and kReduced -> kCapturing: more gradients arrive, in the same backward or a later one, and
// are added. kCapturing -> kAccumulating -> kCapturing: a backward that does not communicate has ended, and the next
// one adds its gradients. kReducing -> kAccumulating: the all-reduce over replicas is left to a later backward.
// kCapturing -> kNone and kAccumulating -> kNone: the backward threw, or gradients were cleared, and the captured
// gradients are discarded.
const std::vector<std::pair<GradientState, GradientState>>& gradient_transitions();

}  // namespace fsdp::engine
