// A strict JSON parser for files that other programs wrote.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Parses one JSON value, encoded in UTF-8, with nothing but white space around it. Syntax errors, duplicate keys of an
// object and nesting deeper than 64 are errors of the form "SOURCE:LINE:COLUMN: what is wrong" (columns count bytes
// from 1).
nlohmann::json parse_json(std::string_view text, const std::string& source);

// Receives the members of one large object one by one, so that they are never all in memory as JSON.
class MemberReader {
 public:
  virtual ~MemberReader() = default;
  // Called when a member begins. Returns false if the key has occurred before.
  virtual bool begin(const std::string& key) = 0;
  // Called with the value of the member that began last.
  virtual void end(nlohmann::json value) = 0;
};

// Parses one JSON value like parse_json above, but passes the members of the object under the outermost object's key
// `key` to `reader`; in the returned value, that object is empty. A member `key` of another type is returned unchanged.
nlohmann::json parse_json(std::string_view text, const std::string& source, const std::string& key,
                          MemberReader& reader);

// Reads a whole JSON file (at most 1 GiB); errors name the path.
nlohmann::json read_json_file(const std::filesystem::path& path);

// Returns text for an error message: in double quotes, with control characters escaped, shortened if long.
std::string quoted_name(std::string_view text);
std::string json_text(const nlohmann::json& value);

}  // namespace fsdp::formats
