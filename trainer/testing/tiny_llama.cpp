#include "testing/tiny_llama.h"

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
          {"eos_token_id", {3, 5}},
          {"torch_dtype", "float32"}};
}

std::shared_ptr<models::PretrainedModel> make_tiny_llama(bool tied, uint64_t seed) {
  return make_tiny_model(tiny_llama_config(tied), seed);
}

void write_tiny_llama(const std::string& folder, bool tied, uint64_t seed) {
  write_tiny_model(folder, tiny_llama_config(tied), seed);
}

}  // namespace fsdp::trainer
