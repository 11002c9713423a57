#include "state/name_map.h"

#include <c10/util/Exception.h>

namespace fsdp::state {

NameMap::NameMap(const std::set<std::string>& given, const Rename& rename) {
  for (const std::string& name : given) {
    const auto [other, added] = given_.emplace(rename ? rename(name) : name, name);
    TORCH_CHECK(added, "'", other->second, "' and '", name, "' are both renamed to '", other->first, "'");
  }
}

std::vector<GivenName> NameMap::find(const std::vector<std::string>& names) {
  std::vector<GivenName> found;
  for (const std::string& name : names) {
    if (const auto it = given_.find(name); it != given_.end()) {
      found.push_back({it->first, it->second});
      expected_.insert(name);
    }
  }
  return found;
}

std::vector<GivenName> NameMap::unexpected() const {
  std::vector<GivenName> names;
  for (const auto& [name, given] : given_) {
    if (expected_.count(name) == 0) names.push_back({name, given});
  }
  return names;
}

Mismatch other_values(const std::string& name, const std::string& first) {
  return {name, "other values", "those of '" + first + "': they are one parameter"};
}

void note_loaded(LoadReport& report, const std::string& name, const GivenName& found) {
  report.loaded.push_back(name);
  if (name != found.given) report.renamed[name] = found.given;
}

}  // namespace fsdp::state
