// A model's config.json.
#include "checkpoint/json_text.h"
#include "models/llama_config.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::check_reader(size, "config.json", [&] {
    const nlohmann::json config = checkpoint::parse_json(fuzz::text_of(data, size), "config.json");
    const models::LlamaConfig llama = models::parse_llama_config(config);
    fuzz::require(llama.head_dim % 2 == 0 && llama.num_attention_heads % llama.num_key_value_heads == 0,
                  "heads divide each other");
    fuzz::require(!llama.pad_token_id || (*llama.pad_token_id >= 0 && *llama.pad_token_id < llama.vocab_size),
                  "the padding is a token");
  });
  return 0;
}
