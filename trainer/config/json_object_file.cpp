#include "config/json_object_file.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config/errors.h"
#include "formats/common/json_text.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

}  // namespace

json parse_config_json(const std::string& text, const std::string& source) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw ConfigError(source + ": the file is empty; it must hold one JSON object, {…}");
  }
  if (text.rfind("\xEF\xBB\xBF", 0) == 0) {
    throw ConfigError(source + ":1:1: the file starts with a byte-order mark; save it as UTF-8 without one");
  }
  try {
    return formats::parse_json(text, source);
  } catch (const c10::Error& error) {
    throw ConfigError(error.what_without_backtrace());
  }
}

json read_json_object(const std::string& path) {
  std::error_code failure;
  if (fs::exists(path, failure) && !fs::is_regular_file(path, failure)) throw ConfigError(path + ": is not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError(c10::str(path, ": cannot open the file: ", std::strerror(errno)));
  json object = parse_config_json({std::istreambuf_iterator<char>(file), {}}, path);
  if (!object.is_object()) throw ConfigError(path + ":1:1: the file must hold one JSON object, {…}");
  return object;
}

}  // namespace fsdp::trainer
