#include "config/config_reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/config_schema.h"
#include "config/errors.h"
#include "config/strict_json.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

std::string read_text(const std::string& path) {
  constexpr size_t kLargest = 16 << 20;
  std::error_code code;
  if (std::filesystem::is_directory(path, code))
    throw ConfigError(fmt::format("{}: is a folder, not a config file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw ConfigError(fmt::format("{}: cannot open the config file: {}", path, std::strerror(errno)));
  std::string text(kLargest + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLargest)
    throw ConfigError(fmt::format("{}: is larger than 16 MiB: not a config file", path));
  return text;
}

const ConfigKey& known_key(const std::string& name, const std::string& where) {
  const ConfigKey* key = find_config_key(name);
  if (key != nullptr) return *key;
  const std::string shown = name.substr(0, 100);
  throw ConfigError(
      fmt::format("{}: unknown key \"{}\"; the nearest known one is \"{}\" (`fsdp train --help` lists all)",
                  where, shown, nearest_config_key(shown)));
}

void apply_file(const std::string& path, Config& config, json& given) {
  const StrictJson file = parse_strict_json(read_text(path), path);
  for (const auto& [name, value] : file.object.items()) {
    const std::string where = fmt::format("{}: line {}", path, file.key_lines.at(name));
    set_value(known_key(name, where), value, where, config);
  }
  given.update(file.object);
}

// The JSON value that the text of an override stands for.
json override_value(const ConfigKey& key, const std::string& text) {
  const std::string type = type_name(key);
  if (type == "list of strings" && text.rfind('[', 0) != 0) {
    json list = json::array();
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) list.push_back(item);
    return list;
  }
  if (type == "string" || (type == "string or null" && text != "null")) return text;
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json(text) : value;
}

void apply_override(const std::string& override, Config& config, json& given) {
  const size_t equals = override.find('=');
  if (equals == std::string::npos) {
    throw ConfigError(fmt::format("--set {}: must have the form KEY=VALUE", override));
  }
  const std::string name = override.substr(0, equals);
  const std::string where = fmt::format("--set {}", override.substr(0, 200));
  const ConfigKey& key = known_key(name, where);
  const json value = override_value(key, override.substr(equals + 1));
  set_value(key, value, where, config);
  given[name] = value;
}

void check_required(const std::string& path, const json& given) {
  for (const ConfigKey& key : config_schema()) {
    if (key.required && !given.contains(key.name)) {
      throw ConfigError(fmt::format("{}: key \"{}\" is missing: {}", path, key.name, key.meaning));
    }
  }
}

[[noreturn]] void contradiction(const std::string& path, const std::string& what) {
  throw ConfigError(fmt::format("{}: {}", path, what));
}

void check_combinations(const std::string& path, const Config& c) {
  if (c.do_eval && !c.eval_dataset) {
    contradiction(path, "key \"do_eval\" is true, but \"eval_dataset\" is null; name a file, or `dummy`");
  }
  if (c.warmup_steps > c.max_steps) {
    contradiction(
        path, fmt::format("key \"warmup_steps\" is {}, more than \"max_steps\", {}; accepted: 0 to max_steps",
                          c.warmup_steps, c.max_steps));
  }
  if (!c.wrap_classes.empty() && c.wrap_policy != "transformer") {
    contradiction(
        path,
        fmt::format("key \"wrap_classes\" is set to {}, but \"wrap_policy\" is \"{}\"; wrap_classes needs "
                    "\"transformer\"",
                    json(c.wrap_classes).dump(), c.wrap_policy));
  }
  if (c.size_min_params != Config{}.size_min_params && c.wrap_policy != "size") {
    contradiction(
        path,
        fmt::format("key \"size_min_params\" is set to {}, but \"wrap_policy\" is \"{}\"; size_min_params "
                    "needs \"size\"",
                    c.size_min_params, c.wrap_policy));
  }
}

}  // namespace

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  Config config;
  json given = json::object();
  apply_file(path, config, given);
  for (const std::string& override : overrides) apply_override(override, config, given);
  check_required(path, given);
  check_combinations(path, config);
  return config;
}

void check_for_world_size(const Config& config, int64_t world_size) {
  if (!config.sharding_factor) return;
  const int64_t factor = *config.sharding_factor;
  const int64_t accepted = config.sharding_strategy == "no_shard" ? 1 : world_size;
  if (factor == accepted) return;
  throw ConfigError(
      fmt::format("key \"sharding_factor\": {} does not fit sharding_strategy \"{}\" on {} rank(s); accepted "
                  "by this version: {} or null",
                  factor, config.sharding_strategy, world_size, accepted));
}

nlohmann::ordered_json to_json(const Config& config) {
  nlohmann::ordered_json result;
  for (const ConfigKey& key : config_schema()) result[key.name] = value_of(key, config);
  return result;
}

}  // namespace fsdp::trainer
