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

bool is_integer_from(int64_t minimum, const json& value) {
  return value.is_number_integer() && value >= minimum && value <= std::numeric_limits<int32_t>::max();
}

bool is_positive_integer(const json& value) { return is_integer_from(1, value); }

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_of_every_config(const std::string& key) {
  static const std::vector<std::string> kKeys{"model_type",  "architectures", "dtype",
                                              "torch_dtype", "_name_or_path", "transformers_version"};
  return is_in(kKeys, key);
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  FSDP_CHECK_WITH(FileError, object_.is_object(), where_, ": expected a JSON object, got ", json_text(object_));
}

bool ConfigReader::has(const std::string& key) const { return !at(key).is_null(); }

bool ConfigReader::is_null(const std::string& key) const { return object_.contains(key) && at(key).is_null(); }

const json& ConfigReader::at(const std::string& key) const {
  static const json kNull;
  read_.insert(key);
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

std::optional<std::vector<int64_t>> ConfigReader::integers(const std::string& key, int64_t minimum) const {
  if (!has(key)) return std::nullopt;
  const std::string expected = c10::str("a list of integers from ", minimum, " to 2^31-1");
  const json& list = at(key);
  if (!list.is_array()) refuse(key, expected);
  std::vector<int64_t> values;
  for (const json& value : list) {
    if (!is_integer_from(minimum, value)) refuse(key, expected);
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

std::vector<double> ConfigReader::numbers(const std::string& key, size_t count, double minimum, double maximum) const {
  const std::string expected = c10::str("a list of ", count, " numbers from ", minimum, " to ", maximum);
  if (!has(key)) missing(key, expected);
  const json& list = at(key);
  if (!list.is_array() || list.size() != count) refuse(key, expected);
  std::vector<double> values;
  for (const json& value : list) {
    if (!value.is_number() || !(value >= minimum && value <= maximum)) refuse(key, expected);
    values.push_back(value.get<double>());
  }
  return values;
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
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || is_of_every_config(key) || is_in(own, key)) continue;
    refuse(key, c10::str("absent: the keys of ", model, " are ", c10::Join(", ", own)));
  }
}

void ConfigReader::refuse_unread(const std::string& model, const std::set<std::string>& harmless) const {
  for (const auto& [key, value] : object_.items()) {
    const bool is_private = key.starts_with('_');  // transformers' notes on how a model was loaded
    if (value.is_null() || is_private || is_of_every_config(key)) continue;
    if (harmless.count(key) != 0 || read_.count(key) != 0) continue;
    refuse(key, c10::str("absent: a model of type ", model, " does not do what this key asks for"));
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
  if (!value.is_string() || !is_in(accepted, name)) refuse(key, "one of: " + c10::Join(", ", accepted));
  return name;
}

std::optional<std::vector<std::string>> ConfigReader::choices(const std::string& key, size_t count,
                                                              const std::vector<std::string>& accepted) const {
  if (!has(key)) return std::nullopt;
  const std::string expected = c10::str("a list of ", count, ", each one of: ", c10::Join(", ", accepted));
  const json& list = at(key);
  if (!list.is_array() || list.size() != count) refuse(key, expected);
  std::vector<std::string> names;
  for (const json& value : list) {
    if (!value.is_string() || !is_in(accepted, value.get<std::string>())) refuse(key, expected);
    names.push_back(value.get<std::string>());
  }
  return names;
}

}  // namespace fsdp::models
