// JSON read strictly: one object, no duplicate keys, bounded depth, errors with line and column.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

namespace fsdp::trainer {

struct StrictJson {
  nlohmann::json object;
  // The line (from 1) on which each key of the outermost object stands.
  std::unordered_map<std::string, size_t> key_lines;
};

// Parses `text`; `name` is the file's name for errors. Throws ConfigError: for what is no JSON, is no object,
// names a key twice at any depth, holds a number that no double can, or nests deeper than 32.
StrictJson parse_strict_json(const std::string& text, const std::string& name);

}  // namespace fsdp::trainer
