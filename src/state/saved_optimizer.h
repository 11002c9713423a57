// The state of an optimizer that will be loaded, by FQN.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "fsdp/state_dict.h"
#include "state/tensor_source.h"

namespace fsdp::state {

using Numbers = std::map<std::string, double>;

struct SavedOptimizer {
  std::shared_ptr<const TensorSource> tensors;  // "FQN/NAME": NAME has no slash
  std::map<std::string, Numbers> scalars;       // for each parameter that has state
  std::vector<ParameterGroup> groups;

  // Returns the names of the tensors of one parameter's state.
  std::set<std::string> names_of(const std::string& fqn) const;
  // Returns the parameters that have state or are in a group.
  std::set<std::string> parameters() const;
};

inline std::string state_name(const std::string& fqn, const std::string& name) { return fqn + "/" + name; }

nlohmann::json text_of(const std::vector<ParameterGroup>& groups);
std::vector<ParameterGroup> parse_groups(const nlohmann::json& text);

}  // namespace fsdp::state
