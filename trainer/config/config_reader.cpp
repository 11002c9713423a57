#include "config/config_reader.h"

#include <c10/util/StringUtil.h>

#include <optional>
#include <sstream>

#include "config/config_checks.h"
#include "config/config_schema.h"
#include "config/errors.h"
#include "config/json_object_file.h"
#include "formats/common/json_text.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

const ConfigKey& known_key(const std::string& name, const std::string& where) {
  const ConfigKey* key = find_config_key(name);
  if (key != nullptr) return *key;
  const std::optional<std::string> similar = similar_config_key(name.substr(0, 100));
  throw ConfigError(c10::str(where, ": unknown key ", formats::quoted_name(name),
                             similar ? "; the nearest known one is \"" + *similar + "\"" : "",
                             " (`fsdp train --help` lists all)"));
}

// Returns the JSON value that the text of an override stands for. Lists and objects begin with their bracket: such a
// text must be JSON, unless the key accepts any string.
json override_value(const ConfigKey& key, const std::string& text, const std::string& where) {
  const std::string type = type_name(key);
  const bool is_text = type == "string" || type == "string or null";
  if (!is_text && (text.rfind('[', 0) == 0 || text.rfind('{', 0) == 0)) return parse_config_json(text, where);
  if (type == "list of strings") {
    json list = json::array();
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) list.push_back(item);
    return list;
  }
  if (type == "string" || (type.rfind("string", 0) == 0 && text != "null")) return text;
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json(text) : value;
}

void apply_override(const std::string& override, Config& config) {
  const size_t equals = override.find('=');
  if (equals == std::string::npos) throw ConfigError("--set " + override + ": must have the form KEY=VALUE");
  const std::string name = override.substr(0, equals);
  const std::string where = "--set " + override.substr(0, 200);
  const ConfigKey& key = known_key(name, where);
  set_value(key, override_value(key, override.substr(equals + 1), where), where, config);
}

// Returns the places where the keys that a message quotes were given: the file, and overrides of these keys.
std::string places_of(const std::string& message, const std::string& path, const std::vector<std::string>& overrides) {
  std::string places = path;
  for (const std::string& override : overrides) {
    const std::string key = override.substr(0, override.find('='));
    if (message.find('"' + key + '"') == std::string::npos) continue;
    places += (places == path ? " with --set " : ", --set ") + override.substr(0, 200);
  }
  return places;
}

}  // namespace

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  return read_config(read_json_object(path), path, overrides);
}

Config read_config(const json& keys, const std::string& source, const std::vector<std::string>& overrides) {
  Config config;
  for (const auto& [name, value] : keys.items()) set_value(known_key(name, source), value, source, config);
  for (const std::string& override : overrides) apply_override(override, config);
  try {
    check_combinations(config);
  } catch (const ConfigError& error) {
    throw ConfigError(places_of(error.what(), source, overrides) + ": " + error.what());
  }
  return config;
}

nlohmann::ordered_json to_json(const Config& config) {
  nlohmann::ordered_json result;
  for (const ConfigKey& key : config_schema()) result[key.name] = value_of(key, config);
  return result;
}

}  // namespace fsdp::trainer
