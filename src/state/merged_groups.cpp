#include "state/merged_groups.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace fsdp::state {

void MergedGroups::add(const std::vector<ParameterGroup>& groups, size_t rank) {
  if (groups.empty()) return;
  if (groups_.empty()) {
    for (const ParameterGroup& group : groups) groups_.push_back({{}, group.options});
  }
  TORCH_CHECK(groups.size() == groups_.size(), "the optimizer has ", groups.size(), " parameter groups on rank ", rank,
              ", where it holds other stages than rank 0, which has ", groups_.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    TORCH_CHECK(groups[i].options == groups_[i].options, "parameter group ", i, " of the optimizer has the options ",
                nlohmann::json(groups[i].options).dump(), " on rank ", rank, " and ",
                nlohmann::json(groups_[i].options).dump(), " on rank 0: they must be the same for all stages");
    for (const std::string& name : groups[i].parameters) {
      if (members_.emplace(i, name).second) groups_[i].parameters.push_back(name);  // tied ones come twice
    }
  }
}

}  // namespace fsdp::state
