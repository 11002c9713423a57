// Values of config keys: types, ranges and choices, in words and as checks.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "config/config_schema.h"
#include "config/edit_distance.h"
#include "config/errors.h"
#include "formats/common/json_text.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

bool has_base_type(const ConfigKey& key, const json& value) {
  const std::string& type = key.member.type_name;
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string or object") return value.is_string() || value.is_object();
  if (type == "boolean or integer") return value.is_boolean() || value.is_number_integer();
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
}

std::string describe(const Range& range) {
  std::string text;
  if (std::isfinite(range.lower)) text = c10::str(range.lower_open ? "> " : ">= ", range.lower);
  if (std::isfinite(range.upper)) {
    text += c10::str(text.empty() ? "" : " and ", range.upper_open ? "< " : "<= ", range.upper);
  }
  return text;
}

[[noreturn]] void refuse(const ConfigKey& key, const json& value, const std::string& where, const std::string& why) {
  throw ConfigError(c10::str(where, ": key \"", key.name, "\": ", formats::json_text(value), " ", why,
                             "; accepted: ", accepted_values(key)));
}

constexpr double kTwoTo63 = 9223372036854775808.0;
constexpr const char* kBeyondInt64 = "is out of range: integers are signed 64-bit, at most 9223372036854775807";

bool takes_integers(const ConfigKey& key) {
  const std::string& type = key.member.type_name;
  return type == "integer" || type == "boolean or integer";
}

// Converts floating-point numbers without a fraction, such as 1e5 and 10.0, to integers: people write them, and so do
// other programs that write JSON.
json as_integer(const ConfigKey& key, const json& value) {
  if (!takes_integers(key) || !value.is_number_float()) return value;
  const double number = value.get<double>();
  const bool is_whole = std::trunc(number) == number && std::abs(number) < kTwoTo63;
  return is_whole ? json(static_cast<int64_t>(number)) : value;
}

void check_type(const ConfigKey& key, const json& value, const std::string& where) {
  if (has_base_type(key, value) || (value.is_null() && key.member.accepts_null)) return;
  const bool too_large = takes_integers(key) && value.is_number_float() && std::abs(value.get<double>()) >= kTwoTo63;
  if (too_large) refuse(key, value, where, kBeyondInt64);
  refuse(key, value, where, "is not of type " + type_name(key));
}

void check_range(const ConfigKey& key, const json& value, const std::string& where) {
  if (!value.is_number()) return;
  const bool above_int64 =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool overflows = above_int64 && key.member.type_name != "number";
  if (overflows) refuse(key, value, where, kBeyondInt64);
  const double number = value.get<double>();
  if (!std::isfinite(number) || (key.range && !key.range->contains(number))) {
    refuse(key, value, where, "is out of range");
  }
}

const std::vector<std::string>& choices_of(const ConfigKey& key) {
  return key.choices.empty() ? key.member.choices : key.choices;
}

bool is_choice(const ConfigKey& key, const json& value) {
  const std::vector<std::string>& choices = choices_of(key);
  return choices.empty() || std::find(choices.begin(), choices.end(), value.get<std::string>()) != choices.end();
}

void check_choice(const ConfigKey& key, const json& value, const std::string& where) {
  for (const auto& [unusable, reason] : key.unusable) {
    if (value == unusable) refuse(key, value, where, "cannot be used: " + reason);
  }
  if (value.is_array()) {
    for (const json& item : value) {
      if (!is_choice(key, item)) refuse(key, item, where, "is not an accepted value");
    }
  }
  if (!value.is_string()) return;
  const std::string text = value.get<std::string>();
  if (text.empty()) refuse(key, value, where, "is empty");
  if (text.find('\0') != std::string::npos) refuse(key, value, where, "holds a NUL character");
  if (!is_choice(key, value)) refuse(key, value, where, "is not an accepted value");
}

}  // namespace

std::string join_or(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

bool Range::contains(double value) const {
  return (lower_open ? value > lower : value >= lower) && (upper_open ? value < upper : value <= upper);
}

std::string type_name(const ConfigKey& key) {
  std::string base = key.member.type_name;
  if (!key.member.accepts_null) return base;
  const bool is_choice = base.find(" or ") != std::string::npos;
  return (is_choice ? base.replace(base.find(" or "), 4, ", ") : base) + " or null";
}

std::string accepted_values(const ConfigKey& key) {
  const std::string or_null = key.member.accepts_null ? " or null" : "";
  const std::string& type = key.member.type_name;
  if (type == "boolean") return "true or false";
  std::vector<std::string> words = choices_of(key);
  if (type == "list of strings") return words.empty() ? "a list of strings" : "a list of " + join_or(words);
  if (!words.empty()) {
    if (key.member.accepts_null) words.emplace_back("null");
    return join_or(words);
  }
  if (type == "string") return "a string that is not empty" + or_null;
  if (type == "string or object") return "a string that is not empty, an object" + or_null;
  const std::string noun = type == "number" ? "a number" : type == "integer" ? "an integer" : "true, false, an integer";
  return noun + (key.range ? " " + describe(*key.range) : "") + or_null;
}

json value_of(const ConfigKey& key, const Config& config) { return key.member.get(config); }

void set_value(const ConfigKey& key, const json& given, const std::string& where, Config& config) {
  const json value = as_integer(key, given);
  check_type(key, value, where);
  check_range(key, value, where);
  check_choice(key, value, where);
  key.member.set(config, value);
}

std::optional<std::string> similar_config_key(const std::string& name) {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_schema()) names.push_back(key.name);
  return similar_name(name, names);
}

}  // namespace fsdp::trainer
