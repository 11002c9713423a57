#include "convert/dcp_layout.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "convert/param_groups.h"
#include "formats/common/json_text.h"

namespace fsdp::convert {
namespace {

using formats::DcpKey;
using formats::DcpMetadata;
using formats::quoted_name;
using nlohmann::json;

constexpr const char* kGroups = "param_groups";
constexpr const char* kState = "state.";

std::optional<std::string> after(const std::string& name, const std::string& prefix) {
  return name.rfind(prefix, 0) == 0 ? std::optional(name.substr(prefix.size())) : std::nullopt;
}

// Adds the part of the name before "param_groups", if that is a component of the name between dots.
void add_optimizer(const std::string& name, std::set<std::string>& prefixes) {
  const size_t at = name.find(kGroups), end = at + std::string(kGroups).size();
  if (at != std::string::npos && (at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) {
    prefixes.insert(name.substr(0, at));
  }
}

std::string shown(const std::set<std::string>& prefixes) {
  std::vector<std::string> quoted;
  for (const std::string& prefix : prefixes) quoted.push_back(quoted_name(prefix));
  return c10::Join(", ", quoted);
}

std::optional<std::string> find_optimizer(const DcpMetadata& metadata, const SourceOptions& options) {
  if (options.optimizer_prefix) return with_dot(*options.optimizer_prefix);
  std::set<std::string> prefixes;
  for (const auto& [name, location] : metadata.bytes) add_optimizer(name, prefixes);
  for (const auto& [name, tensor] : metadata.tensors) add_optimizer(name, prefixes);
  TORCH_CHECK(prefixes.size() < 2, "there are several optimizers, under ", shown(prefixes),
              ": choose one with --optimizer-prefix");
  return prefixes.empty() ? std::nullopt : std::optional(*prefixes.begin());
}

// Returns the path of the name in the writer's nested dicts: all keys but the last, which in a state dict is the FQN.
std::string prefix_of(const DcpMetadata& metadata, const std::string& name) {
  const auto path = metadata.key_paths.find(name);
  std::string prefix;
  for (size_t i = 0; path != metadata.key_paths.end() && i + 1 < path->second.size(); ++i) {
    const DcpKey& key = path->second[i];
    prefix += (key.index() == 0 ? std::get<std::string>(key) : std::to_string(std::get<int64_t>(key))) + ".";
  }
  return name.rfind(prefix, 0) == 0 ? prefix : "";
}

std::string find_model(const DcpMetadata& metadata, const DcpLayout& layout, const SourceOptions& options) {
  if (options.model_prefix) return with_dot(*options.model_prefix);
  std::set<std::string> prefixes;
  for (const auto& [name, tensor] : metadata.tensors) {
    if (!layout.state_name(name) && !layout.group_name(name)) prefixes.insert(prefix_of(metadata, name));
  }
  if (prefixes.size() <= 1) return prefixes.empty() ? "" : *prefixes.begin();
  std::vector<std::string> models;
  std::copy_if(prefixes.begin(), prefixes.end(), std::back_inserter(models), [](const std::string& prefix) {
    return prefix == "model." || (prefix.size() > 7 && prefix.substr(prefix.size() - 7) == ".model.");
  });
  TORCH_CHECK(models.size() == 1, "tensors lie under several prefixes, ", shown(prefixes),
              ": choose the model's with --model-prefix");
  return models.front();
}

class GroupParser {
 public:
  GroupParser(const std::map<std::string, json>& values, Notes& notes) : values_(values), notes_(notes) {}

  // Parses groups with names NUMBER.OPTION.
  json by_number() const {
    json groups = json::array();
    for (int64_t number = 0; values_.count(std::to_string(number) + ".params") > 0; ++number) {
      auto options = options_of(std::to_string(number));
      const json parameters = options.at("params");
      options.erase("params");
      groups.push_back(group(parameters, options));
    }
    return groups;
  }

  // Parses flattened groups with names FQN.OPTION.
  json by_name(const std::vector<std::string>& fqns) const {
    std::vector<std::pair<json, std::map<std::string, json>>> groups;  // parameters and options
    for (const std::string& fqn : fqns) {
      const auto options = options_of(fqn);
      if (options.empty()) continue;
      const auto same =
          std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.second == options; });
      if (same == groups.end()) {
        groups.emplace_back(json::array({fqn}), options);
      } else {
        same->first.push_back(fqn);
      }
    }
    json all = json::array();
    for (const auto& [parameters, options] : groups) all.push_back(group(parameters, options));
    return all;
  }

 private:
  // Names of options contain no dots.
  std::map<std::string, json> options_of(const std::string& owner) const {
    std::map<std::string, json> options;
    for (auto at = values_.lower_bound(owner + "."); at != values_.end() && at->first.rfind(owner + ".", 0) == 0;
         ++at) {
      const std::string option = at->first.substr(owner.size() + 1);
      if (option.find('.') == std::string::npos) options.emplace(option, at->second);
    }
    return options;
  }

  json group(const json& parameters, const std::map<std::string, json>& options) const {
    return {{"parameters", parameters}, {"options", from_python(options, notes_)}};
  }

  const std::map<std::string, json>& values_;
  Notes& notes_;
};

}  // namespace

std::string with_dot(std::string prefix) { return prefix.empty() || prefix.back() == '.' ? prefix : prefix + "."; }

std::optional<std::string> DcpLayout::model_name(const std::string& name) const {
  return state_name(name) || group_name(name) ? std::nullopt : after(name, model);
}

std::optional<std::string> DcpLayout::state_name(const std::string& name) const {
  return optimizer ? after(name, *optimizer + kState) : std::nullopt;
}

std::optional<std::string> DcpLayout::group_name(const std::string& name) const {
  return optimizer ? after(name, *optimizer + kGroups + ".") : std::nullopt;
}

DcpLayout find_layout(const DcpMetadata& metadata, const SourceOptions& options, Notes& notes) {
  DcpLayout layout;
  layout.optimizer = find_optimizer(metadata, options);
  layout.model = find_model(metadata, layout, options);
  if (!layout.model.empty()) notes.push_back("prefix removed from the model's names: " + layout.model);
  if (layout.optimizer && !layout.optimizer->empty()) {
    notes.push_back("prefix removed from the optimizer's names: " + *layout.optimizer);
  }
  return layout;
}

json parse_groups(const std::map<std::string, json>& values, const std::vector<std::string>& fqns, Notes& notes) {
  const GroupParser parser(values, notes);
  if (values.count("0.params") > 0) return parser.by_number();
  json groups = parser.by_name(fqns);
  if (!groups.empty()) {
    notes.push_back(c10::str("flattened parameter groups: parameters with equal options were grouped, ", groups.size(),
                             groups.size() == 1 ? " group" : " groups"));
  }
  return groups;
}

}  // namespace fsdp::convert
