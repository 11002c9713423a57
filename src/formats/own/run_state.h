// The numbers and settings that a training checkpoint stores in addition to its tensors: Manifest::state.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace fsdp::formats {

// `leaves`: the numbers of each parameter's optimizer state, by FQN. `groups`: a list of parameter groups with
// "parameters" and "options". `user`: the caller's data.
inline nlohmann::json run_state(nlohmann::json leaves, nlohmann::json groups, nlohmann::json user) {
  return {{"optimizer", {{"leaves", std::move(leaves)}, {"groups", std::move(groups)}}}, {"user", std::move(user)}};
}

}  // namespace fsdp::formats
