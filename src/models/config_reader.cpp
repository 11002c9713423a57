#include "models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "formats/common/json_text.h"

namespace fsdp::models {

using formats::json_text;
using nlohmann::json;

namespace {

bool is_positive_integer(const json& value) {
  return value.is_number_integer() && value >= 1 && value <= std::numeric_limits<int32_t>::max();
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  FSDP_CHECK_WITH(FileError, object_.is_object(), where_, ": expected a JSON object, got ", json_text(object_));
}

bool ConfigReader::has(const std::string& key) const { return !at(key).is_null(); }

const json& ConfigReader::at(const std::string& key) const {
  static const json kNull;
  const auto found = object_.find(key);
  return found == object_.end() ? kNull : *found;
}

void ConfigReader::refuse(const std::string& key, const std::string& expected) const {
  FSDP_CHECK_WITH(FileError, false, where_, ": ", key, " is ", json_text(at(key)), "; it must be ", expected);
}

void ConfigReader::missing(const std::string& key, const std::string& expected) const {
  FSDP_CHECK_WITH(FileError, false, where_, ": ", key, " is missing; it must be ", expected);
}

int64_t ConfigReader::positive_integer(const std::string& key, std::optional<int64_t> default_value) const {
  const std::string expected = "an integer from 1 to 2^31-1";
  if (!has(key)) return default_value ? *default_value : (missing(key, expected), 0);
  const json& value = at(key);
  if (!is_positive_integer(value)) refuse(key, expected);
  return value.get<int64_t>();
}

std::vector<int64_t> ConfigReader::positive_integers(const std::string& key) const {
  const std::string expected = "a list of integers from 1 to 2^31-1";
  if (!has(key)) missing(key, expected);
  const json& list = at(key);
  if (!list.is_array() || list.empty()) refuse(key, expected);
  std::vector<int64_t> values;
  for (const json& value : list) {
    if (!is_positive_integer(value)) refuse(key, expected);
    values.push_back(value.get<int64_t>());
  }
  return values;
}

std::optional<int64_t> ConfigReader::integer(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const json& value = at(key);
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > kMax)) {
    refuse(key, "an integer from -2^63 to 2^63-1");
  }
  return value.get<int64_t>();
}

double ConfigReader::number(const std::string& key, std::optional<double> default_value, double minimum,
                            double maximum) const {
  const std::string expected = c10::str("a number from ", minimum, " to ", maximum);
  if (!has(key)) return default_value ? *default_value : (missing(key, expected), 0.0);
  if (!at(key).is_number()) refuse(key, expected);
  const double value = at(key).get<double>();
  if (!(value >= minimum && value <= maximum)) refuse(key, expected);
  return value;
}

bool ConfigReader::boolean(const std::string& key, bool default_value) const {
  if (!has(key)) return default_value;
  if (!at(key).is_boolean()) refuse(key, "true or false");
  return at(key).get<bool>();
}

void ConfigReader::refuse_other_names(const char* model,
                                      const std::vector<std::pair<const char*, const char*>>& other_names) const {
  for (const auto& [other, key] : other_names) {
    if (has(other)) refuse(other, c10::str("absent: in a ", model, "'s config.json the key is ", key));
  }
}

void ConfigReader::refuse_all_but(const char* model, const std::vector<std::string>& own) const {
  static const std::vector<std::string> kOfEveryConfig{"model_type",  "architectures", "dtype",
                                                       "torch_dtype", "_name_or_path", "transformers_version"};
  const auto is_in = [](const std::vector<std::string>& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || is_in(kOfEveryConfig, key) || is_in(own, key)) continue;
    refuse(key, c10::str("absent: the keys of ", model, " are ", c10::Join(", ", own)));
  }
}

void ConfigReader::refuse_quantized() const {
  if (has("quantization_config")) refuse("quantization_config", "absent: quantized models are not supported");
}

std::string ConfigReader::choice(const std::string& key, const std::string& default_value,
                                 const std::vector<std::string>& accepted) const {
  if (!has(key)) return default_value;
  const json& value = at(key);
  const std::string name = value.is_string() ? value.get<std::string>() : std::string();
  if (!value.is_string() || std::find(accepted.begin(), accepted.end(), name) == accepted.end()) {
    refuse(key, "one of: " + c10::Join(", ", accepted));
  }
  return name;
}

}  // namespace fsdp::models
