// Reads a config: a JSON file, then overrides from the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace fsdp::trainer {

// The config that the file and `overrides` ("KEY=VALUE", later ones win) describe, checked as far as it can
// be without the model, the data and the number of ranks. Throws ConfigError, naming file (or --set), key,
// value and what is accepted. In an override a string is written without quotes, a list as a JSON list or as
// A,B,C.
Config read_config(const std::string& path, const std::vector<std::string>& overrides);

// All keys with their values, in the order of the schema. Read again, it gives the same config.
nlohmann::ordered_json to_json(const Config& config);

}  // namespace fsdp::trainer
