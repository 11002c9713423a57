#include "testing/tiny_llama.h"

#include <ATen/Context.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors_writer.h"
#include "models/pretrained.h"

namespace fsdp::trainer {

nlohmann::json tiny_llama_config(bool tied) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 18},
          {"intermediate_size", 29},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 3},
          {"num_key_value_heads", 1},
          {"vocab_size", kTinyVocabulary},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"initializer_range", 0.1},
          {"tie_word_embeddings", tied},
          {"torch_dtype", "float32"}};
}

std::shared_ptr<models::CausalLM> make_tiny_llama(bool tied, uint64_t seed) {
  at::manual_seed(seed);
  return models::make_causal_lm(tiny_llama_config(tied), at::kFloat, at::kCPU);
}

void write_tiny_llama(const std::string& folder, bool tied, uint64_t seed) {
  const std::filesystem::path path(folder);
  std::filesystem::create_directories(path);
  std::ofstream(path / "config.json") << tiny_llama_config(tied).dump(2);
  std::ofstream(path / "tokenizer.json") << "{\"version\": \"1.0\"}";
  const auto model = make_tiny_llama(tied, seed);
  const auto tensors = models::checkpoint_tensors(*model);
  checkpoint::SafetensorsWriter writer(path / "model.safetensors", tensors);
  const auto parameters = model->named_parameters();
  for (const auto& tensor : tensors) writer.write(tensor.name, parameters[tensor.name].detach());
  writer.finish();
}

}  // namespace fsdp::trainer
