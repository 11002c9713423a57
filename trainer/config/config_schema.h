// The only table of config keys. Reading, --set, --help, resolved_config.json and docs/config.md are all derived from
// it.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/config_member.h"

namespace fsdp::trainer {

// Accepted numbers: from lower to upper, the ends included unless open.
struct Range {
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
  bool lower_open = false;
  bool upper_open = false;

  bool contains(double value) const;
};

struct ConfigKey {
  std::string section;
  std::string name;
  ConfigMember member;
  std::string meaning = {};
  std::optional<Range> range = {};  // for numbers
  // For strings, also in lists: the accepted values. Empty: all names of an enumeration, or else any string that is not
  // empty.
  std::vector<std::string> choices = {};
  // Values that a user might expect but that cannot be used, each with the reason.
  std::vector<std::pair<nlohmann::json, std::string>> unusable = {};
};

const std::vector<ConfigKey>& config_schema();
// Returns the key with this name, or null if it does not exist.
const ConfigKey* find_config_key(const std::string& name);
// Returns the key that a mistyped name stands for, if there is one (similar_name).
std::optional<std::string> similar_config_key(const std::string& name);

// Returns "string", "integer", "number", "boolean", "boolean or integer", "string or object" or "list of strings", with
// " or null" for optional keys.
std::string type_name(const ConfigKey& key);
// Returns the accepted values in words: "an integer >= 1", "full_shard, shard_grad_op or no_shard", …
std::string accepted_values(const ConfigKey& key);

// Returns the value of a key in `config`, as JSON.
nlohmann::json value_of(const ConfigKey& key, const Config& config);
// Stores `value`. Throws a ConfigError if the value is unsuitable: it starts with `where` ("config.json", "--set a=b")
// and names key, value and accepted values.
void set_value(const ConfigKey& key, const nlohmann::json& value, const std::string& where, Config& config);

// Joins values as in "a, b or c".
std::string join_or(const std::vector<std::string>& words);

}  // namespace fsdp::trainer
