// Reads a config: a JSON file, then overrides from the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::trainer {

// Returns the config that the file and `overrides` ("KEY=VALUE", later ones win) describe. Checks everything that can
// be checked without the model, the data and the number of ranks. Throws a ConfigError that names the file (or --set),
// the key, the value and the accepted values. In an override, a string is written without quotes, and a list as a JSON
// list or as A,B,C.
Config read_config(const std::string& path, const std::vector<std::string>& overrides);
// Like read_config, for the members of a JSON object. `source`: its name in errors.
Config read_config(const nlohmann::json& keys, const std::string& source, const std::vector<std::string>& overrides);

// Returns all keys with their values, in the order of the schema. Reading the result gives the same config.
nlohmann::ordered_json to_json(const Config& config);

}  // namespace fsdp::trainer
