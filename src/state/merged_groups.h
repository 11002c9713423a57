// The parameter groups of an optimizer of the stages of a pipeline.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/state_dict.h"

namespace fsdp::state {

// Groups of the same number on all stages are one group of the model.
class MergedGroups {
 public:
  // Adds those of a rank; none: it has no optimizer. Another number of groups, and other options, are errors that name
  // `rank`.
  void add(const std::vector<ParameterGroup>& groups, size_t rank);

  const std::vector<ParameterGroup>& groups() const { return groups_; }

 private:
  std::vector<ParameterGroup> groups_;
  std::set<std::pair<size_t, std::string>> members_;  // of the groups
};

}  // namespace fsdp::state
