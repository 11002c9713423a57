// The config.json of a DeepViT.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::models {

// Fields have the names of config.json. transformers has no DeepViT; names are those of its ViT if ViT has the same
// setting.
struct DeepViTConfig {
  int64_t image_size = 0;  // height and width
  int64_t patch_size = 0;  // divides image_size
  int64_t num_channels = 3;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;  // divides hidden_size
  int64_t intermediate_size = 0;    // of the MLP; if absent 4 * hidden_size
  std::string hidden_act = "gelu";  // one of activation_names()
  bool qkv_bias = true;             // whether the projections to queries, keys and values have a bias
  // Dropout in training mode. `dropout` applies to embeddings and to the outputs of attention and MLP before they are
  // added to the residual; `attention_dropout` applies to attention maps.
  double dropout = 0.0;
  double attention_dropout = 0.0;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  int64_t num_labels = 2;

  // The number of tokens: the patches and the class token.
  int64_t tokens() const { return (image_size / patch_size) * (image_size / patch_size) + 1; }
};

// Required keys: image_size, patch_size, hidden_size, num_hidden_layers, num_attention_heads. All others have the
// defaults above; see parse_num_labels for the number of classes. Wrong types, values out of range, and keys that are
// neither in the struct nor in every Hugging Face config.json are errors that name the key, its value and the accepted
// values.
DeepViTConfig parse_deepvit_config(const nlohmann::json& config);

}  // namespace fsdp::models
