// Which names of a torch.distributed.checkpoint are whose: the model's, its optimizer's, or others.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/dcp_metadata.h"
#include "convert/source.h"

namespace fsdp::convert {

// Prefixes end with a dot unless they are empty. Names are laid out as torch.distributed.checkpoint.state_dict does it:
// MODEL.FQN, OPTIMIZER.state.FQN.NAME, and for parameter groups OPTIMIZER.param_groups.NUMBER.OPTION with the group's
// FQNs as option "params", or flattened OPTIMIZER.param_groups.FQN.OPTION.
struct DcpLayout {
  std::string model;
  std::optional<std::string> optimizer;  // unset: there is none

  // What follows the prefix, in names that have it.
  std::optional<std::string> model_name(const std::string& name) const;
  std::optional<std::string> state_name(const std::string& name) const;  // FQN.NAME
  std::optional<std::string> group_name(const std::string& name) const;  // NUMBER.OPTION or FQN.OPTION
};

// By the options, or by the names themselves. Errors, which list what there is, when several prefixes could be meant.
DcpLayout find_layout(const checkpoint::DcpMetadata& metadata, const SourceOptions& options, Notes& notes);

// A prefix as a user gives it, with or without its dot.
std::string with_dot(std::string prefix);

// Groups as Contents::groups has them, from values by their group_name(). Flattened ones are put together where their
// options are equal. FQNs: all parameters.
nlohmann::json parse_groups(const std::map<std::string, nlohmann::json>& values, const std::vector<std::string>& fqns,
                            Notes& notes);

}  // namespace fsdp::convert
