#include "planner/calibration/calibration_models.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config_names.h"
#include "config/config_reader.h"
#include "models/presets.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;

json llama(int64_t width, int64_t layers, int64_t heads, int64_t inner, int64_t vocabulary = 4096) {
  return {{"model_type", "llama"},       {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", width},        {"intermediate_size", inner},
          {"num_hidden_layers", layers}, {"num_attention_heads", heads},
          {"vocab_size", vocabulary},    {"pad_token_id", nullptr}};
}

json like_preset(const std::string& preset, const json& sizes) {
  json model = models::find_preset(preset).config;
  model.update(sizes);
  return model;
}

json gpt2(int64_t width, int64_t layers, int64_t heads) {
  return like_preset(
      "gpt2", {{"n_embd", width}, {"n_layer", layers}, {"n_head", heads}, {"n_positions", 512}, {"vocab_size", 4096}});
}

json t5(int64_t width, int64_t inner, int64_t layers, int64_t heads) {
  return like_preset("t5-611m", {{"d_model", width},
                                 {"d_kv", width / heads},
                                 {"d_ff", inner},
                                 {"num_layers", layers},
                                 {"num_heads", heads},
                                 {"vocab_size", 4096}});
}

json deepvit(int64_t width, int64_t layers, int64_t heads, int64_t inner) {
  return like_preset("deepvit-s", {{"image_size", 64},
                                   {"patch_size", 8},
                                   {"hidden_size", width},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", heads},
                                   {"intermediate_size", inner},
                                   {"num_labels", 100}});
}

json regnet(const json& widths, const json& depths) {
  return like_preset("regnet-y-400mf", {{"hidden_sizes", widths}, {"depths", depths}, {"num_labels", 100}});
}

json run_of(const json& model, int samples, const json& more = json::object()) {
  json keys = {{"model", model},        {"train_batch_size", samples}, {"device", "cpu"},
               {"check_memory", false}, {"clip_grad_norm", 1},         {"dataset", "dummy:4000"}};
  keys.update(more);
  return keys;
}

std::vector<json> small_runs() {
  const auto tokens = [](int length) { return json{{"max_seq_length", length}}; };
  const auto pixels = [](int size) { return json{{"image_size", size}}; };
  return {run_of(llama(128, 2, 4, 352), 4, tokens(64)),
          run_of(llama(384, 2, 6, 1024), 4, tokens(128)),
          run_of(llama(256, 1, 4, 512, 32000), 2, tokens(32)),
          run_of(llama(256, 1, 4, 512), 1, tokens(512)),
          run_of(gpt2(128, 2, 4), 4, tokens(64)),
          run_of(gpt2(256, 1, 8), 2, tokens(256)),
          run_of(gpt2(512, 2, 8), 2, tokens(128)),
          run_of(t5(128, 256, 2, 4), 4, tokens(64)),
          run_of(t5(384, 1024, 2, 6), 2, tokens(128)),
          run_of(deepvit(128, 3, 4, 256), 4),
          run_of(deepvit(384, 3, 6, 768), 4),
          run_of(regnet({32, 64, 96, 160}, {1, 2, 2, 1}), 4, pixels(64)),
          run_of(regnet({40, 112, 224, 456}, {1, 2, 3, 1}), 2, pixels(128)),
          run_of(regnet({64, 128, 288, 672}, {1, 1, 2, 1}), 2, pixels(96))};
}

std::vector<trainer::Config> configs_of(const std::vector<json>& runs, at::ScalarType dtype) {
  std::vector<trainer::Config> configs;
  for (const json& keys : runs) {
    configs.push_back(trainer::read_config(keys, "calibration", {"dtype=" + trainer::config_name(dtype)}));
  }
  return configs;
}

}  // namespace

std::vector<trainer::Config> calibration_runs(at::ScalarType dtype) { return configs_of(small_runs(), dtype); }

std::vector<trainer::Config> sharded_calibration_runs() {
  return configs_of({run_of(llama(384, 3, 6, 1024), 2, {{"max_seq_length", 128}}),
                     run_of(gpt2(320, 3, 5), 4, {{"max_seq_length", 64}}), run_of(deepvit(384, 4, 6, 768), 4),
                     run_of(t5(256, 512, 3, 4), 2, {{"max_seq_length", 64}}),
                     run_of(regnet({32, 64, 160, 384}, {1, 2, 3, 1}), 4, {{"image_size", 96}})},
                    at::kFloat);
}

}  // namespace fsdp::planner
