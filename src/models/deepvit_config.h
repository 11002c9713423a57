// What config.json says about a DeepViT.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fsdp::models {

// Named as in config.json. transformers has no such model; names are those of its ViT where both have the thing.
struct DeepViTConfig {
  int64_t image_size = 0;  // height and width
  int64_t patch_size = 0;  // divides image_size
  int64_t num_channels = 3;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;  // divides hidden_size
  int64_t intermediate_size = 0;    // of the MLP; without the key 4 hidden_size
  std::string hidden_act = "gelu";  // one of activation_names()
  bool qkv_bias = true;             // whether the projections to queries, keys and values have a bias
  // Dropout, in training mode: of embeddings and of what attention and MLP add to the residual; of attention maps.
  double dropout = 0.0;
  double attention_dropout = 0.0;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  int64_t num_labels = 2;

  // The patches and the class token.
  int64_t tokens() const { return (image_size / patch_size) * (image_size / patch_size) + 1; }
};

// Required keys: image_size, patch_size, hidden_size, num_hidden_layers, num_attention_heads. Others have the defaults
// above; for the number of classes see parse_num_labels. Wrong types, values out of range and keys that are not those
// of the struct or of every config.json of Hugging Face are errors that name the key, its value and what is accepted.
DeepViTConfig parse_deepvit_config(const nlohmann::json& config);

}  // namespace fsdp::models
