// The numbers and settings that a training checkpoint keeps beside its tensors: Manifest::state.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace fsdp::checkpoint {

// `leaves`: by FQN, the numbers of a parameter's optimizer state. `groups`: a list of parameter groups with
// "parameters" and "options". `user`: the caller's.
inline nlohmann::json run_state(nlohmann::json leaves, nlohmann::json groups, nlohmann::json user) {
  return {{"optimizer", {{"leaves", std::move(leaves)}, {"groups", std::move(groups)}}}, {"user", std::move(user)}};
}

}  // namespace fsdp::checkpoint
