// Typed access to a model's config.json, with errors that name the key, its value and what is accepted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::models {

// Reads the keys of one JSON object. A key that is absent and a key that is null are the same, as in
// transformers. The object must outlive the reader.
class ConfigReader {
 public:
  // `where` names the object in errors, e.g. "config.json" or "config.json: rope_parameters".
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const std::string& key) const;
  // The value, or null.
  const nlohmann::json& at(const std::string& key) const;

  // Integers >= 1. Without a default the key must be there.
  int64_t positive_integer(const std::string& key, std::optional<int64_t> default_value = {}) const;
  // A list of at least one integer >= 1; must be there.
  std::vector<int64_t> positive_integers(const std::string& key) const;
  // An integer, or nothing when the key is absent.
  std::optional<int64_t> integer(const std::string& key) const;
  // Finite numbers in [minimum, maximum].
  double number(const std::string& key, std::optional<double> default_value, double minimum, double maximum) const;
  bool boolean(const std::string& key, bool default_value) const;
  // One of `accepted`.
  std::string choice(const std::string& key, const std::string& default_value,
                     const std::vector<std::string>& accepted) const;

  // Throws when a key is there under a name that `model`'s config.json does not use: pairs of that name and the key.
  void refuse_other_names(const char* model, const std::vector<std::pair<const char*, const char*>>& other_names) const;
  // Throws when a key is there that is none of `own`, which are `model`'s, and none that folders of any model have.
  void refuse_all_but(const char* model, const std::vector<std::string>& own) const;
  // Throws when quantized weights are asked for, which no model here has.
  void refuse_quantized() const;

  // Throws: the key's value is not what `expected` says.
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;
  // Throws: the key is absent.
  [[noreturn]] void missing(const std::string& key, const std::string& expected) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace fsdp::models
