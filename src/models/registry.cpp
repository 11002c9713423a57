#include "models/registry.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/layers.h"
#include "models/llama.h"
#include "models/llama_config.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

struct Architecture {
  const char* model_type;
  const char* class_name;  // in config.json's "architectures"
  std::shared_ptr<CausalLM> (*make)(const json& config, const at::TensorOptions& options);
  double (*initializer_range)(const json& config);
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kArchitectures{
      {"llama", "LlamaForCausalLM",
       [](const json& config, const at::TensorOptions& options) -> std::shared_ptr<CausalLM> {
         return std::make_shared<LlamaForCausalLMImpl>(parse_llama_config(config), options);
       },
       [](const json& config) { return parse_llama_config(config).initializer_range; }},
  };
  return kArchitectures;
}

std::string accepted(const char* Architecture::*name) {
  std::vector<std::string> names;
  for (const Architecture& architecture : architectures()) {
    names.emplace_back(architecture.*name);
  }
  return c10::Join(", ", names);
}

// model_type says which architecture it is; "architectures", where present, must agree that it is a causal
// LM.
const Architecture& find_architecture(const json& config) {
  const ConfigReader reader(config, "config.json");
  const std::string type = reader.choice("model_type", "", {accepted(&Architecture::model_type)});
  const json& classes = reader.at("architectures");
  if (!classes.is_null() && !classes.is_array()) {
    reader.refuse("architectures", "an array with one of: " + accepted(&Architecture::class_name));
  }
  for (const Architecture& architecture : architectures()) {
    const bool named = std::find(classes.begin(), classes.end(), architecture.class_name) != classes.end();
    if (named || (classes.empty() && type == architecture.model_type)) {
      return architecture;
    }
  }
  if (classes.empty()) {
    TORCH_CHECK(false, "config.json: model_type is missing; it must be one of: ", accepted(&Architecture::model_type));
  }
  reader.refuse("architectures", "an array with one of: " + accepted(&Architecture::class_name));
}

}  // namespace

std::shared_ptr<CausalLM> make_uninitialized_causal_lm(const json& config, const at::TensorOptions& options) {
  return find_architecture(config).make(config, options);
}

std::shared_ptr<CausalLM> make_causal_lm(const json& config, c10::ScalarType dtype, c10::Device device) {
  TORCH_CHECK(c10::isFloatingType(dtype), "make_causal_lm: parameters must be floating point, not ",
              c10::toString(dtype));
  auto model = make_uninitialized_causal_lm(config, at::TensorOptions().dtype(dtype).device(device));
  if (!device.is_meta()) {
    initialize_parameters(*model, find_architecture(config).initializer_range(config));
  }
  return model;
}

}  // namespace fsdp::models
