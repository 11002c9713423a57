// Typed access to a model's config.json, with errors that name the key, its value and the accepted values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::models {

// Reads the keys of one JSON object. As in transformers, a null value means that the key is absent. The object must
// outlive the reader.
class ConfigReader {
 public:
  // `where` names the object in errors, e.g. "config.json" or "config.json: rope_parameters".
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const std::string& key) const;
  // Returns whether the key is present and its value null, where that differs from an absent key.
  bool is_null(const std::string& key) const;
  // The value, or null.
  const nlohmann::json& at(const std::string& key) const;

  // Returns an integer >= 1. Without a default the key is required.
  int64_t positive_integer(const std::string& key, std::optional<int64_t> default_value = {}) const;
  // Returns a list of at least one integer, all >= 1. The key is required.
  std::vector<int64_t> positive_integers(const std::string& key) const;
  // Returns a list of integers in [minimum, 2^31-1], of any length, or nothing if the key is absent.
  std::optional<std::vector<int64_t>> integers(const std::string& key, int64_t minimum) const;
  // Returns an integer, or nothing if the key is absent.
  std::optional<int64_t> integer(const std::string& key) const;
  // Returns a finite number in [minimum, maximum].
  double number(const std::string& key, std::optional<double> default_value, double minimum, double maximum) const;
  // Returns a list of `count` finite numbers in [minimum, maximum]. The key is required.
  std::vector<double> numbers(const std::string& key, size_t count, double minimum, double maximum) const;
  bool boolean(const std::string& key, bool default_value) const;
  // Returns one of `accepted`.
  std::string choice(const std::string& key, const std::string& default_value,
                     const std::vector<std::string>& accepted) const;
  // Returns a list of `count` strings, each one of `accepted`, or nothing if the key is absent.
  std::optional<std::vector<std::string>> choices(const std::string& key, size_t count,
                                                  const std::vector<std::string>& accepted) const;

  // Throws if the object has a key under a name that `model`'s config.json does not use. `other_names` are pairs of
  // that name and the correct key.
  void refuse_other_names(const char* model, const std::vector<std::pair<const char*, const char*>>& other_names) const;
  // Throws if the object has a key that is neither in `own`, the keys of `model`, nor common to the folders of all
  // models.
  void refuse_all_but(const char* model, const std::vector<std::string>& own) const;
  // Throws if the object has a key that nobody has asked this reader for, other than those in `harmless`, those common
  // to the folders of all models, and those that begin with "_". `model` is the name used in the error.
  void refuse_unread(const std::string& model, const std::set<std::string>& harmless) const;
  // Throws if the config asks for quantized weights, which no model here supports.
  void refuse_quantized() const;

  // Throws an error that the value of the key is not as described by `expected`.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;
  // Throws an error that the key is absent.
  [[noreturn]] void missing(const std::string& key, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
  mutable std::set<std::string> read_;  // the keys that were asked for
};

}  // namespace fsdp::models
