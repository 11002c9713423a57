// Strict JSON for files that others wrote.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::checkpoint {

// Parses one JSON value, encoded in UTF-8, with nothing but white space around it. Syntax errors, duplicate
// keys of an object and nesting deeper than 64 are errors of the form "SOURCE:LINE:COLUMN: what is wrong"
// (columns count bytes from 1).
nlohmann::json parse_json(std::string_view text, const std::string& source);

// Takes the members of one large object one by one, so that they are never all in memory as JSON.
class MemberReader {
 public:
  virtual ~MemberReader() = default;
  // A member begins. Whether its key has not come before.
  virtual bool begin(const std::string& key) = 0;
  // Its value.
  virtual void end(nlohmann::json value) = 0;
};

// The same, but gives the members of the object that is the outermost object's member `key` to `reader`; in the value
// returned, that object is empty. A member `key` of another type stays as it is.
nlohmann::json parse_json(std::string_view text, const std::string& source, const std::string& key,
                          MemberReader& reader);

// Reads a whole JSON file (at most 1 GiB); errors name the path.
nlohmann::json read_json_file(const std::filesystem::path& path);

// Text for an error message: in double quotes, control characters escaped, shortened when long.
std::string quoted_name(std::string_view text);
std::string json_text(const nlohmann::json& value);

}  // namespace fsdp::checkpoint
