#include "state/saved_optimizer.h"

namespace fsdp::state {

using nlohmann::json;

std::set<std::string> SavedOptimizer::names_of(const std::string& fqn) const {
  const std::string prefix = state_name(fqn, "");
  std::set<std::string> names;
  const auto& all = tensors->tensors();
  for (auto it = all.lower_bound(prefix); it != all.end() && it->first.rfind(prefix, 0) == 0; ++it) {
    if (it->first.find('/', prefix.size()) == std::string::npos) names.insert(it->first.substr(prefix.size()));
  }
  return names;
}

std::set<std::string> SavedOptimizer::parameters() const {
  std::set<std::string> fqns;
  for (const auto& [fqn, numbers] : scalars) fqns.insert(fqn);
  for (const ParameterGroup& group : groups) fqns.insert(group.parameters.begin(), group.parameters.end());
  return fqns;
}

json text_of(const std::vector<ParameterGroup>& groups) {
  json text = json::array();
  for (const ParameterGroup& group : groups) {
    text.push_back({{"parameters", group.parameters}, {"options", group.options}});
  }
  return text;
}

std::vector<ParameterGroup> parse_groups(const json& text) {
  std::vector<ParameterGroup> groups;
  for (const json& group : text) {
    groups.push_back({group.at("parameters").get<std::vector<std::string>>(), group.at("options").get<Numbers>()});
  }
  return groups;
}

}  // namespace fsdp::state
