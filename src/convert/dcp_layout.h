// Finds which names of a torch.distributed.checkpoint belong to the model, to its optimizer, or to neither.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "convert/source.h"
#include "formats/dcp/dcp_metadata.h"

namespace fsdp::convert {

// Prefixes end with a dot unless they are empty. Names are laid out as by torch.distributed.checkpoint.state_dict:
// MODEL.FQN, OPTIMIZER.state.FQN.NAME, and for parameter groups OPTIMIZER.param_groups.NUMBER.OPTION with the group's
// FQNs as option "params", or flattened OPTIMIZER.param_groups.FQN.OPTION.
struct DcpLayout {
  std::string model;
  std::optional<std::string> optimizer;  // unset: no optimizer

  // Each returns the rest of a name after the prefix, or unset if the name does not have the prefix.
  std::optional<std::string> model_name(const std::string& name) const;
  std::optional<std::string> state_name(const std::string& name) const;  // FQN.NAME
  std::optional<std::string> group_name(const std::string& name) const;  // NUMBER.OPTION or FQN.OPTION
};

// Finds the layout from the options, or from the names themselves. If several prefixes are possible, throws an error
// that lists them.
DcpLayout find_layout(const formats::DcpMetadata& metadata, const SourceOptions& options, Notes& notes);

// Returns the prefix with its dot; users may pass it with or without.
std::string with_dot(std::string prefix);

// Returns groups in the form of Contents::groups, from values by their group_name(). Flattened groups are merged if
// their options are equal. `fqns`: those of all parameters.
nlohmann::json parse_groups(const std::map<std::string, nlohmann::json>& values, const std::vector<std::string>& fqns,
                            Notes& notes);

}  // namespace fsdp::convert
