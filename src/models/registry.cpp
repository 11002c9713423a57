#include "models/registry.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "models/config_reader.h"
#include "models/decoder/decoder.h"
#include "models/decoder/families.h"
#include "models/deepvit.h"
#include "models/deepvit_config.h"
#include "models/dhen.h"
#include "models/dhen_config.h"
#include "models/gpt2.h"
#include "models/gpt2_config.h"
#include "models/mpt.h"
#include "models/mpt_config.h"
#include "models/regnet.h"
#include "models/regnet_config.h"
#include "models/t5.h"
#include "models/t5_config.h"

namespace fsdp::models {
namespace {

using nlohmann::json;

enum class Kind { kCausalLM, kSeq2SeqLM, kImageClassifier, kTabular };

// Returns the kind of Model, or nothing for PretrainedModel, which is a base of all.
template <typename Model>
std::optional<Kind> kind_of() {
  if (std::is_base_of_v<CausalLM, Model>) return Kind::kCausalLM;
  if (std::is_base_of_v<Seq2SeqLM, Model>) return Kind::kSeq2SeqLM;
  if (std::is_base_of_v<ImageClassifier, Model>) return Kind::kImageClassifier;
  if (std::is_base_of_v<TabularModel, Model>) return Kind::kTabular;
  return std::nullopt;
}

const char* described(Kind kind) {
  switch (kind) {
    case Kind::kCausalLM:
      return "a causal language model";
    case Kind::kSeq2SeqLM:
      return "a sequence-to-sequence language model";
    case Kind::kImageClassifier:
      return "an image classifier";
    case Kind::kTabular:
      return "a model of tabular data";
  }
  return "";
}

struct Architecture {
  const char* model_type;
  const char* class_name;  // in config.json's "architectures"
  // The class without its head, which some folders name; transformers adds the head, which must be tied or in the
  // folder. Null if the architecture has no such class.
  const char* base_class_name;
  Kind kind;
  std::function<std::shared_ptr<PretrainedModel>(const json& config, const at::TensorOptions& options)> make;
  // Returns the config.json of the model that `make` makes, if that is a part of the one that the argument describes.
  std::function<json(const json& config)> config_of_made = nullptr;
};

template <typename Model, auto parse_config>
Architecture architecture(const char* model_type, const char* class_name, const char* base_class_name = nullptr) {
  return {model_type, class_name, base_class_name, kind_of<Model>().value(),
          [](const json& config, const at::TensorOptions& options) -> std::shared_ptr<PretrainedModel> {
            return std::make_shared<Model>(parse_config(config), options);
          }};
}

Architecture decoder(const DecoderFamily& family) {
  return {family.model_type,
          family.class_name,
          family.base_class_name,
          Kind::kCausalLM,
          [&family](const json& config, const at::TensorOptions& options) -> std::shared_ptr<PretrainedModel> {
            return std::make_shared<DecoderForCausalLMImpl>(parse_decoder_config(config, family), options);
          },
          [&family](const json& config) { return config_of_decoder(config, family); }};
}

std::vector<Architecture> make_architectures() {
  std::vector<Architecture> all;
  for (const DecoderFamily& family : decoder_families()) all.push_back(decoder(family));
  const std::vector<Architecture> others{
      architecture<GPT2LMHeadModelImpl, parse_gpt2_config>("gpt2", "GPT2LMHeadModel", "GPT2Model"),
      architecture<MptForCausalLMImpl, parse_mpt_config>("mpt", "MptForCausalLM", "MptModel"),
      architecture<T5ForConditionalGenerationImpl, parse_t5_config>("t5", "T5ForConditionalGeneration", "T5Model"),
      architecture<RegNetForImageClassificationImpl, parse_regnet_config>("regnet", "RegNetForImageClassification"),
      architecture<DeepViTImpl, parse_deepvit_config>("deepvit", "DeepViT"),
      architecture<DhenImpl, parse_dhen_config>("dhen", "DHEN"),
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kArchitectures = make_architectures();
  return kArchitectures;
}

std::vector<std::string> types_of(std::optional<Kind> wanted) {
  std::vector<std::string> types;
  for (const Architecture& architecture : architectures()) {
    if (!wanted || architecture.kind == *wanted) types.emplace_back(architecture.model_type);
  }
  return types;
}

void check_kind(const Architecture& found, std::optional<Kind> wanted) {
  if (!wanted || found.kind == *wanted) return;
  FSDP_CHECK_WITH(FileError, false, "config.json: model_type ", found.model_type, " (", found.class_name, ") is ",
                  described(found.kind), "; expected ", described(*wanted),
                  ", whose model_type must be one of: ", c10::Join(", ", types_of(wanted)));
}

// Finds the architecture by model_type, and checks that "architectures" names its class; one of the two may be absent.
// A kind other than `wanted` is an error, and is reported before all other errors.
const Architecture& find_architecture(const json& config, std::optional<Kind> wanted) {
  const ConfigReader reader(config, "config.json");
  const json &type = reader.at("model_type"), &classes = reader.at("architectures");
  const bool any_type = type.is_null(), any_class = classes.is_null() || classes == json::array();
  const auto lists = [&](const char* name) {
    return name != nullptr && classes.is_array() && std::find(classes.begin(), classes.end(), name) != classes.end();
  };
  const auto is_named = [&](const Architecture& architecture) {
    return lists(architecture.class_name) || lists(architecture.base_class_name);
  };
  std::vector<std::string> accepted;  // accepted classes
  for (const Architecture& architecture : architectures()) {
    if (any_type ? is_named(architecture) : type == architecture.model_type) {
      check_kind(architecture, wanted);
      if (any_class || is_named(architecture)) return architecture;
    }
    const bool fits = any_type ? !wanted || architecture.kind == *wanted : type == architecture.model_type;
    if (fits) accepted.emplace_back(architecture.class_name);
  }
  const std::string types = c10::Join(", ", types_of(wanted));
  if (any_type && any_class) reader.missing("model_type", "one of: " + types);
  if (accepted.empty()) reader.refuse("model_type", "one of: " + types);
  reader.refuse("architectures", "an array with one of: " + c10::Join(", ", accepted));
}

// A token, or an array of them, or null.
std::vector<int64_t> parse_end_tokens(const json& config) {
  const ConfigReader reader(config, "config.json");
  const json& ends = reader.at("eos_token_id");
  if (ends.is_null()) return {};
  const json tokens = ends.is_array() ? ends : json::array({ends});
  if (!std::all_of(tokens.begin(), tokens.end(), [](const json& token) { return token.is_number_integer(); })) {
    reader.refuse("eos_token_id", "an integer, an array of integers, or null");
  }
  return tokens.get<std::vector<int64_t>>();
}

template <typename Model>
std::shared_ptr<Model> make(const char* function, const json& config, c10::ScalarType dtype, c10::Device device) {
  TORCH_CHECK(c10::isFloatingType(dtype), function, ": parameters must be floating point, not ", c10::toString(dtype));
  auto model = make_uninitialized<Model>(config, at::TensorOptions().dtype(dtype).device(device));
  if (!device.is_meta()) model->initialize();
  return model;
}

}  // namespace

template <typename Model>
std::shared_ptr<Model> make_uninitialized(const json& config, const at::TensorOptions& options) {
  const auto model = find_architecture(config, kind_of<Model>()).make(config, options);
  if (auto* causal = dynamic_cast<CausalLM*>(model.get())) causal->set_end_tokens(parse_end_tokens(config));
  return std::static_pointer_cast<Model>(model);
}

json with_class_of_model(json config) {
  const Architecture& found = find_architecture(config, std::nullopt);
  if (found.config_of_made) config = found.config_of_made(config);
  const Architecture& architecture = find_architecture(config, std::nullopt);
  const auto classes = config.find("architectures");
  if (classes != config.end() && !classes->empty()) *classes = json::array({architecture.class_name});
  return config;
}

template std::shared_ptr<CausalLM> make_uninitialized(const json&, const at::TensorOptions&);
template std::shared_ptr<Seq2SeqLM> make_uninitialized(const json&, const at::TensorOptions&);
template std::shared_ptr<ImageClassifier> make_uninitialized(const json&, const at::TensorOptions&);
template std::shared_ptr<TabularModel> make_uninitialized(const json&, const at::TensorOptions&);
template std::shared_ptr<PretrainedModel> make_uninitialized(const json&, const at::TensorOptions&);

std::shared_ptr<CausalLM> make_causal_lm(const json& config, c10::ScalarType dtype, c10::Device device) {
  return make<CausalLM>("make_causal_lm", config, dtype, device);
}

std::shared_ptr<Seq2SeqLM> make_seq2seq_lm(const json& config, c10::ScalarType dtype, c10::Device device) {
  return make<Seq2SeqLM>("make_seq2seq_lm", config, dtype, device);
}

std::shared_ptr<ImageClassifier> make_image_classifier(const json& config, c10::ScalarType dtype, c10::Device device) {
  return make<ImageClassifier>("make_image_classifier", config, dtype, device);
}

}  // namespace fsdp::models
