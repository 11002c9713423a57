// JSON for precompiled headers.
#pragma once
#include <nlohmann/json.hpp>

#ifdef __clang__
// Uses the templates that most files use, so that the precompiled header holds their instances.
namespace fsdp::precompiled {

inline std::string use_json(const nlohmann::json& object, nlohmann::ordered_json& ordered) {
  ordered["text"] = object.at("text").get<std::string>();
  ordered["number"] = object.value("number", 1.0);
  ordered["object"] = {{"number", 1}, {"bool", true}};
  for (const auto& [key, value] : object.items()) ordered[key] = value.get<int64_t>();
  return nlohmann::json::parse(object.dump()).dump() + ordered.dump(2);
}

}  // namespace fsdp::precompiled
#endif
