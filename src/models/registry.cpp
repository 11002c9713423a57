#include "models/registry.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "models/config_reader.h"
#include "models/gpt2.h"
#include "models/gpt2_config.h"
#include "models/llama.h"
#include "models/llama_config.h"
#include "models/t5.h"
#include "models/t5_config.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

enum class Kind { kCausal, kSeq2Seq };

struct Architecture {
  const char* model_type;
  const char* class_name;  // in config.json's "architectures"
  Kind kind;
  std::shared_ptr<LanguageModel> (*make)(const json& config, const at::TensorOptions& options);
};

template <typename Model, auto parse_config>
Architecture architecture(const char* model_type, const char* class_name) {
  return {model_type, class_name, std::is_base_of_v<CausalLM, Model> ? Kind::kCausal : Kind::kSeq2Seq,
          [](const json& config, const at::TensorOptions& options) -> std::shared_ptr<LanguageModel> {
            return std::make_shared<Model>(parse_config(config), options);
          }};
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kArchitectures{
      architecture<LlamaForCausalLMImpl, parse_llama_config>("llama", "LlamaForCausalLM"),
      architecture<GPT2LMHeadModelImpl, parse_gpt2_config>("gpt2", "GPT2LMHeadModel"),
      architecture<T5ForConditionalGenerationImpl, parse_t5_config>("t5", "T5ForConditionalGeneration"),
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

const char* described(Kind kind) {
  return kind == Kind::kCausal ? "a causal language model" : "a sequence-to-sequence language model";
}

// The architecture, or an error if it is of another kind.
const Architecture& find_architecture(const json& config, Kind wanted) {
  const Architecture& found = find_architecture(config);
  std::vector<std::string> accepted;
  for (const Architecture& architecture : architectures()) {
    if (architecture.kind == wanted) accepted.emplace_back(architecture.model_type);
  }
  TORCH_CHECK(found.kind == wanted, "config.json: model_type ", found.model_type, " (", found.class_name, ") is ",
              described(found.kind), "; what is wanted here is ", described(wanted),
              ", whose model_type is one of: ", c10::Join(", ", accepted));
  return found;
}

std::shared_ptr<LanguageModel> make(const char* function, const json& config, Kind kind, c10::ScalarType dtype,
                                    c10::Device device) {
  TORCH_CHECK(c10::isFloatingType(dtype), function, ": parameters must be floating point, not ", c10::toString(dtype));
  auto model = find_architecture(config, kind).make(config, at::TensorOptions().dtype(dtype).device(device));
  if (!device.is_meta()) model->initialize();
  return model;
}

}  // namespace

std::shared_ptr<LanguageModel> make_uninitialized_language_model(const json& config, const at::TensorOptions& options) {
  return find_architecture(config).make(config, options);
}

std::shared_ptr<CausalLM> make_uninitialized_causal_lm(const json& config, const at::TensorOptions& options) {
  return std::static_pointer_cast<CausalLM>(find_architecture(config, Kind::kCausal).make(config, options));
}

std::shared_ptr<Seq2SeqLM> make_uninitialized_seq2seq_lm(const json& config, const at::TensorOptions& options) {
  return std::static_pointer_cast<Seq2SeqLM>(find_architecture(config, Kind::kSeq2Seq).make(config, options));
}

std::shared_ptr<CausalLM> make_causal_lm(const json& config, c10::ScalarType dtype, c10::Device device) {
  return std::static_pointer_cast<CausalLM>(make("make_causal_lm", config, Kind::kCausal, dtype, device));
}

std::shared_ptr<Seq2SeqLM> make_seq2seq_lm(const json& config, c10::ScalarType dtype, c10::Device device) {
  return std::static_pointer_cast<Seq2SeqLM>(make("make_seq2seq_lm", config, Kind::kSeq2Seq, dtype, device));
}

}  // namespace fsdp::models
