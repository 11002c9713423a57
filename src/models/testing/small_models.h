// For tests: a small config.json of every architecture, with sizes that have few divisors.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace fsdp::models {

inline nlohmann::json small_llama() {
  return {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 31},         {"hidden_size", 12},
          {"intermediate_size", 20},  {"num_hidden_layers", 2},
          {"num_attention_heads", 6}, {"num_key_value_heads", 2}};
}

inline nlohmann::json small_gpt2() {
  return {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", 31},     {"n_positions", 19},
          {"n_embd", 12},         {"n_layer", 2},
          {"n_head", 3},          {"n_inner", 20},
          {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},    {"tie_word_embeddings", false}};
}

inline nlohmann::json small_t5() {
  return {{"model_type", "t5"},
          {"architectures", {"T5ForConditionalGeneration"}},
          {"vocab_size", 31},
          {"d_model", 12},
          {"d_kv", 5},
          {"d_ff", 20},
          {"num_layers", 2},
          {"num_heads", 3},
          {"relative_attention_num_buckets", 6},
          {"relative_attention_max_distance", 9},
          {"dropout_rate", 0.0},
          {"tie_word_embeddings", false},
          {"decoder_start_token_id", 0}};
}

inline nlohmann::json small_regnet(const char* layer_type = "y") {
  return {{"model_type", "regnet"},   {"architectures", {"RegNetForImageClassification"}},
          {"embedding_size", 5},      {"hidden_sizes", {6, 10}},
          {"depths", {2, 1}},         {"groups_width", 2},
          {"layer_type", layer_type}, {"num_labels", 7}};
}

inline nlohmann::json small_deepvit() {
  return {
      {"model_type", "deepvit"}, {"architectures", {"DeepViT"}}, {"image_size", 15},         {"patch_size", 5},
      {"hidden_size", 12},       {"num_hidden_layers", 3},       {"num_attention_heads", 3}, {"intermediate_size", 20},
      {"num_labels", 7}};
}

inline nlohmann::json small_dhen() {
  return {{"model_type", "dhen"},
          {"architectures", {"DHEN"}},
          {"num_numeric_features", 3},
          {"table_rows", {4, 7, 2}},
          {"embedding_width", 8},
          {"num_hidden_layers", 2},
          {"interaction_outputs", 2},
          {"num_attention_heads", 2},
          {"interactions", {"attention", "cross", "dot_product", "linear", "mlp"}},
          {"cross_rank", 3},
          {"mlp_size", 5},
          {"numeric_sizes", {6}},
          {"head_sizes", {9}},
          {"initializer_range", 0.2}};
}

inline nlohmann::json changed(nlohmann::json config, const nlohmann::json& changes) {
  if (!changes.is_null()) config.update(changes);
  return config;
}

// The properties of a causal language model that the common tests need.
struct SmallModel {
  std::string name;
  nlohmann::json config;  // without tied weights and dropout
  std::string embedding;  // FQN of the embedding's weight
  std::string block;      // class name
  std::string layers_key;
  std::vector<std::string> dropout_keys;
  std::string activation;  // the operator that each block's forward calls once
};

inline std::ostream& operator<<(std::ostream& out, const SmallModel& model) { return out << model.name; }

inline std::vector<SmallModel> small_models() {
  return {{"llama",
           small_llama(),
           "model.embed_tokens.weight",
           "LlamaDecoderLayer",
           "num_hidden_layers",
           {"attention_dropout"},
           "aten::silu"},
          {"gpt2",
           small_gpt2(),
           "transformer.wte.weight",
           "GPT2Block",
           "n_layer",
           {"resid_pdrop", "embd_pdrop", "attn_pdrop"},
           "aten::gelu"}};
}

// The properties of an image classifier that the common tests need. All models have 3 blocks.
struct SmallImageModel {
  std::string name;
  nlohmann::json config;  // without dropout
  std::string block;      // class name
  std::vector<std::string> dropout_keys;
};

inline std::ostream& operator<<(std::ostream& out, const SmallImageModel& model) { return out << model.name; }

inline std::vector<SmallImageModel> small_image_models() {
  return {{"regnet_x", small_regnet("x"), "RegNetLayer", {}},
          {"regnet_y", small_regnet(), "RegNetLayer", {}},
          {"deepvit", small_deepvit(), "DeepViTBlock", {"dropout", "attention_dropout"}}};
}

}  // namespace fsdp::models
