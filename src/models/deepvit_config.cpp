#include "models/deepvit_config.h"

#include <c10/util/StringUtil.h>

#include <vector>

#include "models/activations.h"
#include "models/config_reader.h"
#include "models/image_config.h"

namespace fsdp::models {
namespace {

const std::vector<std::string>& deepvit_keys() {
  static const std::vector<std::string> kKeys{
      "image_size",        "patch_size", "num_channels", "hidden_size", "num_hidden_layers", "num_attention_heads",
      "intermediate_size", "hidden_act", "qkv_bias",     "dropout",     "attention_dropout", "layer_norm_eps",
      "initializer_range", "num_labels", "id2label",     "label2id",    "problem_type"};
  return kKeys;
}

void parse_sizes(const ConfigReader& config, DeepViTConfig& vit) {
  vit.image_size = config.positive_integer("image_size");
  vit.patch_size = config.positive_integer("patch_size");
  vit.num_channels = config.positive_integer("num_channels", vit.num_channels);
  vit.hidden_size = config.positive_integer("hidden_size");
  vit.num_hidden_layers = config.positive_integer("num_hidden_layers");
  vit.num_attention_heads = config.positive_integer("num_attention_heads");
  vit.intermediate_size = config.positive_integer("intermediate_size", 4 * vit.hidden_size);
  if (vit.image_size % vit.patch_size != 0) {
    config.refuse("patch_size", c10::str("a divisor of image_size, ", vit.image_size));
  }
  if (vit.hidden_size % vit.num_attention_heads != 0) {
    config.refuse("num_attention_heads", c10::str("a divisor of hidden_size, ", vit.hidden_size));
  }
}

}  // namespace

DeepViTConfig parse_deepvit_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  DeepViTConfig vit;
  vit.num_labels = parse_num_labels(config);
  config.refuse_all_but("a DeepViT", deepvit_keys());
  parse_sizes(config, vit);
  vit.hidden_act = config.choice("hidden_act", vit.hidden_act, activation_names());
  vit.qkv_bias = config.boolean("qkv_bias", vit.qkv_bias);
  vit.dropout = config.number("dropout", vit.dropout, 0.0, 1.0);
  vit.attention_dropout = config.number("attention_dropout", vit.attention_dropout, 0.0, 1.0);
  vit.layer_norm_eps = config.number("layer_norm_eps", vit.layer_norm_eps, 0.0, 1.0);
  vit.initializer_range = config.number("initializer_range", vit.initializer_range, 0.0, 1.0);
  return vit;
}

}  // namespace fsdp::models
