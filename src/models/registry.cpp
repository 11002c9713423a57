#include "models/registry.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/gpt2.h"
#include "models/gpt2_config.h"
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

template <typename Model, auto parse_config>
Architecture architecture(const char* model_type, const char* class_name) {
  return {model_type, class_name,
          [](const json& config, const at::TensorOptions& options) -> std::shared_ptr<CausalLM> {
            return std::make_shared<Model>(parse_config(config), options);
          },
          [](const json& config) { return parse_config(config).initializer_range; }};
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kArchitectures{
      architecture<LlamaForCausalLMImpl, parse_llama_config>("llama", "LlamaForCausalLM"),
      architecture<GPT2LMHeadModelImpl, parse_gpt2_config>("gpt2", "GPT2LMHeadModel"),
  };
  return kArchitectures;
}

std::vector<std::string> names(const char* Architecture::*name) {
  std::vector<std::string> result;
  for (const Architecture& architecture : architectures()) {
    result.emplace_back(architecture.*name);
  }
  return result;
}

// model_type says which architecture it is, and "architectures" that it is a causal LM; one of them may be absent.
const Architecture& find_architecture(const json& config) {
  const ConfigReader reader(config, "config.json");
  const std::vector<std::string> types = names(&Architecture::model_type);
  const std::string type = reader.choice("model_type", "", types);
  const json& classes = reader.at("architectures");
  const bool any_class = classes.is_null() || classes == json::array();
  const auto is_named = [&](const char* class_name) {
    return classes.is_array() && std::find(classes.begin(), classes.end(), class_name) != classes.end();
  };
  TORCH_CHECK(!type.empty() || !any_class,
              "config.json: model_type is missing; it must be one of: ", c10::Join(", ", types));
  std::vector<std::string> accepted;
  for (const Architecture& architecture : architectures()) {
    if (!type.empty() && type != architecture.model_type) continue;
    accepted.emplace_back(architecture.class_name);
    if (any_class || is_named(architecture.class_name)) return architecture;
  }
  reader.refuse("architectures", "an array with one of: " + c10::Join(", ", accepted));
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
