// The one table of config keys. Reading, --set, --help, resolved_config.json and docs/config.md all come from
// it.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/config.h"

namespace fsdp::trainer {

// Where a key's value lives. Its type is the key's type; optional members accept null.
using ConfigMember = std::variant<std::string Config::*, std::optional<std::string> Config::*, bool Config::*,
                                  int64_t Config::*, std::optional<int64_t> Config::*, double Config::*,
                                  std::optional<double> Config::*, std::optional<BoolOrInteger> Config::*,
                                  std::optional<nlohmann::json> Config::*, std::vector<std::string> Config::*>;

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
  std::optional<Range> range = {};        // of numbers
  std::vector<std::string> choices = {};  // of strings, also in lists; empty: any that is not empty
  // Values that one might expect but that cannot be used, each with the reason.
  std::vector<std::pair<nlohmann::json, std::string>> unusable = {};
};

const std::vector<ConfigKey>& config_schema();
// Null when there is no such key.
const ConfigKey* find_config_key(const std::string& name);
// The known key with the smallest edit distance to `name`, unless it is so far from it (more than a third of its
// letters) that it is hardly meant; then one that `name` is a part of, if it is only one.
std::optional<std::string> similar_config_key(const std::string& name);

// "string", "integer", "number", "boolean", "boolean or integer", "string or object", "list of strings",
// with " or null" for optional keys.
std::string type_name(const ConfigKey& key);
// What may be given now, in words: "an integer >= 1", "full_shard, shard_grad_op or no_shard", …
std::string accepted_values(const ConfigKey& key);

// The value of a key in `config`, as JSON.
nlohmann::json value_of(const ConfigKey& key, const Config& config);
// Stores `value`. An unsuitable one is a ConfigError that starts with `where` ("config.json", "--set a=b"),
// and names key, value and accepted values.
void set_value(const ConfigKey& key, const nlohmann::json& value, const std::string& where, Config& config);

}  // namespace fsdp::trainer
