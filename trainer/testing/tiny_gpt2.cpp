#include "testing/tiny_gpt2.h"

#include <string_view>

namespace fsdp::trainer {

nlohmann::json tiny_gpt2_config(bool tied) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", 18},
          {"n_inner", 29},
          {"n_layer", 3},
          {"n_head", 3},
          {"n_positions", 64},
          {"vocab_size", kTinyVocabulary},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0},
          {"initializer_range", 0.1},
          {"tie_word_embeddings", tied},
          {"torch_dtype", "float32"}};
}

std::shared_ptr<models::PretrainedModel> make_tiny_gpt2(bool tied, uint64_t seed) {
  return make_tiny_model(tiny_gpt2_config(tied), seed);
}

void write_old_tiny_gpt2(const std::string& folder, bool tied, uint64_t seed) {
  constexpr std::string_view kPrefix = "transformer.";
  write_tiny_model(folder, tiny_gpt2_config(tied), seed,
                   [&](const std::string& fqn) { return fqn.starts_with(kPrefix) ? fqn.substr(kPrefix.size()) : fqn; });
}

}  // namespace fsdp::trainer
