// Reads JSON that people write.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::trainer {

// Parses one JSON value. Throws a ConfigError of the form "SOURCE:LINE:COLUMN: what is wrong".
nlohmann::json parse_config_json(const std::string& text, const std::string& source);

// Reads a file that holds one JSON object. Throws a ConfigError that begins with the path.
nlohmann::json read_json_object(const std::string& path);

}  // namespace fsdp::trainer
