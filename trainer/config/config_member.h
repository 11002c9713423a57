// The member of the config that stores a key's value, without its type.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/config_names.h"

namespace fsdp::trainer {

// The name of a type, its accepted values if they are a fixed set, and the JSON of its values. This one is for
// enumerations (config_names.h).
template <typename T>
struct ConfigValue {
  static constexpr const char* kTypeName = "string";
  static constexpr bool kAcceptsNull = false;
  static std::vector<std::string> choices() { return config_names<T>(); }
  static nlohmann::json to_json(T value) { return config_name(value); }
  static T from_json(const nlohmann::json& value) { return from_config_name<T>(value.get<std::string>()); }
};

// A type that nlohmann::json converts.
template <typename T>
struct PlainConfigValue {
  static constexpr bool kAcceptsNull = false;
  static std::vector<std::string> choices() { return {}; }
  static nlohmann::json to_json(const T& value) { return value; }
  static T from_json(const nlohmann::json& value) { return value.get<T>(); }
};
template <>
struct ConfigValue<std::string> : PlainConfigValue<std::string> {
  static constexpr const char* kTypeName = "string";
};
template <>
struct ConfigValue<bool> : PlainConfigValue<bool> {
  static constexpr const char* kTypeName = "boolean";
};
template <>
struct ConfigValue<int64_t> : PlainConfigValue<int64_t> {
  static constexpr const char* kTypeName = "integer";
};
template <>
struct ConfigValue<double> : PlainConfigValue<double> {
  static constexpr const char* kTypeName = "number";
};
template <>
struct ConfigValue<nlohmann::json> : PlainConfigValue<nlohmann::json> {
  static constexpr const char* kTypeName = "string or object";
};

template <>
struct ConfigValue<BoolOrInteger> {
  static constexpr const char* kTypeName = "boolean or integer";
  static constexpr bool kAcceptsNull = false;
  static std::vector<std::string> choices() { return {}; }
  static nlohmann::json to_json(const BoolOrInteger& value) {
    return std::visit([](auto held) { return nlohmann::json(held); }, value);
  }
  static BoolOrInteger from_json(const nlohmann::json& value) {
    if (value.is_boolean()) return value.get<bool>();
    return value.get<int64_t>();
  }
};

// `choices` are those of the items.
template <typename T>
struct ConfigValue<std::vector<T>> {
  static constexpr const char* kTypeName = "list of strings";
  static constexpr bool kAcceptsNull = false;
  static std::vector<std::string> choices() { return ConfigValue<T>::choices(); }
  static nlohmann::json to_json(const std::vector<T>& values) {
    nlohmann::json list = nlohmann::json::array();
    for (const T& value : values) list.push_back(ConfigValue<T>::to_json(value));
    return list;
  }
  static std::vector<T> from_json(const nlohmann::json& list) {
    std::vector<T> values;
    for (const nlohmann::json& value : list) values.push_back(ConfigValue<T>::from_json(value));
    return values;
  }
};

// `kTypeName` and `choices` are those of the value; null stands for none.
template <typename T>
struct ConfigValue<std::optional<T>> : ConfigValue<T> {
  static constexpr bool kAcceptsNull = true;
  static nlohmann::json to_json(const std::optional<T>& value) {
    return value ? ConfigValue<T>::to_json(*value) : nlohmann::json();
  }
  static std::optional<T> from_json(const nlohmann::json& value) {
    return value.is_null() ? std::nullopt : std::optional<T>(ConfigValue<T>::from_json(value));
  }
};

struct ConfigMember {
  // Written as {&Config::precision, &PrecisionConfig::dtype}.
  template <typename Section, typename T>
  ConfigMember(Section Config::* section, T Section::* member)  // NOLINT: converts from a braced pair
      : type_name(ConfigValue<T>::kTypeName),
        accepts_null(ConfigValue<T>::kAcceptsNull),
        choices(ConfigValue<T>::choices()),
        get([=](const Config& config) { return ConfigValue<T>::to_json((config.*section).*member); }),
        set([=](Config& config, const nlohmann::json& value) {
          (config.*section).*member = ConfigValue<T>::from_json(value);
        }) {}

  std::string type_name;  // without " or null"
  bool accepts_null;
  std::vector<std::string> choices;  // the names of an enumeration; empty for other types
  std::function<nlohmann::json(const Config&)> get;
  // The value must be of the type, and one of the choices, if there are any.
  std::function<void(Config&, const nlohmann::json& value)> set;
};

}  // namespace fsdp::trainer
