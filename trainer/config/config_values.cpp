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

// The type of a member; for an optional member, the type of its value.
template <typename T>
struct Held {
  using Type = T;
  static constexpr bool kOptional = false;
};
template <typename T>
struct Held<std::optional<T>> {
  using Type = T;
  static constexpr bool kOptional = true;
};

bool accepts_null(const ConfigKey& key) {
  return std::visit([]<typename T>(T Config::*) { return Held<T>::kOptional; }, key.member);
}

const char* name_of(const std::string*) { return "string"; }
const char* name_of(const bool*) { return "boolean"; }
const char* name_of(const int64_t*) { return "integer"; }
const char* name_of(const double*) { return "number"; }
const char* name_of(const BoolOrInteger*) { return "boolean or integer"; }
const char* name_of(const json*) { return "string or object"; }
const char* name_of(const std::vector<std::string>*) { return "list of strings"; }

std::string base_type_name(const ConfigKey& key) {
  return std::visit([]<typename T>(T Config::*) { return name_of(static_cast<typename Held<T>::Type*>(nullptr)); },
                    key.member);
}

template <typename T>
json json_of(const T& value) {
  return value;
}
json json_of(const BoolOrInteger& value) {
  return std::visit([](auto held) { return json(held); }, value);
}

template <typename T>
T value_from(const json& value) {
  return value.get<T>();
}
template <>
BoolOrInteger value_from<BoolOrInteger>(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  return value.get<int64_t>();
}

bool has_base_type(const ConfigKey& key, const json& value) {
  const std::string type = base_type_name(key);
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
  const std::string type = base_type_name(key);
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
  if (has_base_type(key, value) || (value.is_null() && accepts_null(key))) return;
  const bool too_large = takes_integers(key) && value.is_number_float() && std::abs(value.get<double>()) >= kTwoTo63;
  if (too_large) refuse(key, value, where, kBeyondInt64);
  refuse(key, value, where, "is not of type " + type_name(key));
}

void check_range(const ConfigKey& key, const json& value, const std::string& where) {
  if (!value.is_number()) return;
  const bool above_int64 =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool overflows = above_int64 && base_type_name(key) != "number";
  if (overflows) refuse(key, value, where, kBeyondInt64);
  const double number = value.get<double>();
  if (!std::isfinite(number) || (key.range && !key.range->contains(number))) {
    refuse(key, value, where, "is out of range");
  }
}

bool is_choice(const ConfigKey& key, const json& value) {
  return std::find(key.choices.begin(), key.choices.end(), value.get<std::string>()) != key.choices.end();
}

void check_choice(const ConfigKey& key, const json& value, const std::string& where) {
  for (const auto& [unusable, reason] : key.unusable) {
    if (value == unusable) refuse(key, value, where, "cannot be used: " + reason);
  }
  if (value.is_array() && !key.choices.empty()) {
    for (const json& item : value) {
      if (!is_choice(key, item)) refuse(key, item, where, "is not an accepted value");
    }
  }
  if (!value.is_string()) return;
  const std::string text = value.get<std::string>();
  if (text.empty()) refuse(key, value, where, "is empty");
  if (text.find('\0') != std::string::npos) refuse(key, value, where, "holds a NUL character");
  if (!key.choices.empty() && !is_choice(key, value)) refuse(key, value, where, "is not an accepted value");
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
  std::string base = base_type_name(key);
  if (!accepts_null(key)) return base;
  const bool is_choice = base.find(" or ") != std::string::npos;
  return (is_choice ? base.replace(base.find(" or "), 4, ", ") : base) + " or null";
}

std::string accepted_values(const ConfigKey& key) {
  const std::string or_null = accepts_null(key) ? " or null" : "";
  const std::string type = base_type_name(key);
  if (type == "boolean") return "true or false";
  if (type == "list of strings") return key.choices.empty() ? "a list of strings" : "a list of " + join_or(key.choices);
  if (!key.choices.empty()) {
    std::vector<std::string> words = key.choices;
    if (accepts_null(key)) words.emplace_back("null");
    return join_or(words);
  }
  if (type == "string") return "a string that is not empty" + or_null;
  if (type == "string or object") return "a string that is not empty, an object" + or_null;
  const std::string noun = type == "number" ? "a number" : type == "integer" ? "an integer" : "true, false, an integer";
  return noun + (key.range ? " " + describe(*key.range) : "") + or_null;
}

json value_of(const ConfigKey& key, const Config& config) {
  return std::visit(
      [&]<typename T>(T Config::* member) -> json {
        if constexpr (Held<T>::kOptional) {
          return (config.*member) ? json_of(*(config.*member)) : json();
        } else {
          return json_of(config.*member);
        }
      },
      key.member);
}

void set_value(const ConfigKey& key, const json& given, const std::string& where, Config& config) {
  const json value = as_integer(key, given);
  check_type(key, value, where);
  check_range(key, value, where);
  check_choice(key, value, where);
  std::visit(
      [&]<typename T>(T Config::* member) {
        if (Held<T>::kOptional && value.is_null()) {
          (config.*member) = T{};
        } else {
          (config.*member) = value_from<typename Held<T>::Type>(value);
        }
      },
      key.member);
}

std::optional<std::string> similar_config_key(const std::string& name) {
  const auto& keys = config_schema();
  const auto distance = [&](const ConfigKey& key) { return edit_distance(name, key.name); };
  const auto nearest = std::min_element(
      keys.begin(), keys.end(), [&](const ConfigKey& a, const ConfigKey& b) { return distance(a) < distance(b); });
  if (3 * distance(*nearest) <= nearest->name.size()) return nearest->name;
  const auto has_it = [&](const ConfigKey& key) { return !name.empty() && key.name.find(name) != std::string::npos; };
  if (std::count_if(keys.begin(), keys.end(), has_it) != 1) return std::nullopt;
  return std::find_if(keys.begin(), keys.end(), has_it)->name;
}

}  // namespace fsdp::trainer
