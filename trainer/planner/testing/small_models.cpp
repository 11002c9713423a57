#include "planner/testing/small_models.h"

#include <map>

#include "config/config_reader.h"
#include "models/presets.h"
#include "support/files/temporary_folder.h"

namespace fsdp::planner {
namespace {

nlohmann::json decoder(const std::string& type, const std::string& class_name,
                       const nlohmann::json& sizes = nlohmann::json::object()) {
  nlohmann::json config = {
      {"model_type", type},     {"architectures", {class_name}}, {"hidden_size", 56},        {"intermediate_size", 97},
      {"num_hidden_layers", 3}, {"num_attention_heads", 4},      {"num_key_value_heads", 2}, {"vocab_size", 103},
      {"pad_token_id", nullptr}};
  config.update(sizes);
  return config;
}

nlohmann::json smaller(const std::string& preset, const nlohmann::json& sizes) {
  nlohmann::json config = models::find_preset(preset).config;
  config.update(sizes);
  return config;
}

const std::map<std::string, nlohmann::json>& small_models() {
  static const std::map<std::string, nlohmann::json> all = {
      {"gpt2",
       smaller("gpt2", {{"n_embd", 36}, {"n_layer", 3}, {"n_head", 4}, {"n_positions", 16}, {"vocab_size", 101}})},
      {"llama", decoder("llama", "LlamaForCausalLM")},
      {"gemma2", decoder("gemma2", "Gemma2ForCausalLM",
                         {{"head_dim", 12}, {"sliding_window", 3}, {"query_pre_attn_scalar", 12}})},
      {"olmo3", decoder("olmo3", "Olmo3ForCausalLM", {{"sliding_window", 3}, {"num_hidden_layers", 4}})},
      {"phi3", decoder("phi3", "Phi3ForCausalLM")},
      {"qwen3", decoder("qwen3", "Qwen3ForCausalLM", {{"head_dim", 12}})},
      {"mpt",
       smaller("mpt-7b", {{"d_model", 36}, {"n_layers", 3}, {"n_heads", 4}, {"max_seq_len", 16}, {"vocab_size", 101}})},
      {"t5",
       smaller(
           "t5-611m",
           {{"d_model", 44}, {"d_kv", 12}, {"d_ff", 83}, {"num_layers", 2}, {"num_heads", 4}, {"vocab_size", 107}})},
      {"regnet",
       smaller("regnet-y-400mf", {{"hidden_sizes", {16, 24, 32, 48}}, {"depths", {1, 1, 2, 1}}, {"num_labels", 13}})},
      {"deepvit", smaller("deepvit-s", {{"image_size", 32},
                                        {"patch_size", 8},
                                        {"hidden_size", 44},
                                        {"num_hidden_layers", 2},
                                        {"num_attention_heads", 4},
                                        {"intermediate_size", 67},
                                        {"num_labels", 13}})},
  };
  return all;
}

}  // namespace

std::vector<std::string> small_model_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : small_models()) names.push_back(name);
  return names;
}

nlohmann::json small_config(const std::string& model, const nlohmann::json& more) {
  nlohmann::json json = {{"model", small_models().at(model)},
                         {"train_batch_size", 2},
                         {"device", "cpu"},
                         {"comm_backend", "gloo"},
                         {"check_memory", false}};
  if (model == "regnet") json["image_size"] = 32;
  if (model != "regnet" && model != "deepvit") json["max_seq_length"] = 8;
  json.update(more);
  return json;
}

trainer::Config read_json(const nlohmann::json& json) {
  const testing::TemporaryFolder folder;
  return trainer::read_config(folder.write("config.json", json.dump()), {});
}

}  // namespace fsdp::planner
