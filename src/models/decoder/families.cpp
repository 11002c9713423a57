#include "models/decoder/families.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <set>

#include "models/decoder/families/parsers.h"

namespace fsdp::models {
namespace {

// Keys that folders carry and that change neither training nor the weights: of generation, of tokenizers, of other
// programs.
const std::set<std::string>& harmless_keys() {
  static const std::set<std::string> kKeys{"auto_map",
                                           "bad_words_ids",
                                           "begin_suppress_tokens",
                                           "bos_token_id",
                                           "cache_implementation",
                                           "chunk_size_feed_forward",
                                           "decoder_start_token_id",
                                           "diversity_penalty",
                                           "do_sample",
                                           "early_stopping",
                                           "encoder_no_repeat_ngram_size",
                                           "eos_token_id",
                                           "exponential_decay_length_penalty",
                                           "finetuning_task",
                                           "forced_bos_token_id",
                                           "forced_eos_token_id",
                                           "id2label",
                                           "is_decoder",
                                           "is_encoder_decoder",
                                           "is_llama_config",
                                           "label2id",
                                           "length_penalty",
                                           "mask_token_id",
                                           "max_length",
                                           "min_length",
                                           "model_name",
                                           "no_repeat_ngram_size",
                                           "num_beam_groups",
                                           "num_beams",
                                           "num_return_sequences",
                                           "output_attentions",
                                           "output_hidden_states",
                                           "output_scores",
                                           "prefix",
                                           "pretraining_tp",
                                           "problem_type",
                                           "remove_invalid_values",
                                           "repetition_penalty",
                                           "return_dict",
                                           "return_dict_in_generate",
                                           "sep_token_id",
                                           "suppress_tokens",
                                           "task_specific_params",
                                           "temperature",
                                           "tokenizer_class",
                                           "top_k",
                                           "top_p",
                                           "torchscript",
                                           "transformers.js_config",
                                           "typical_p",
                                           "unk_token_id",
                                           "unsloth_fixed",
                                           "unsloth_version",
                                           "use_cache"};
  return kKeys;
}

}  // namespace

const std::vector<DecoderFamily>& decoder_families() {
  using namespace families;
  static const std::vector<DecoderFamily> kFamilies{
      {"llama", "LlamaForCausalLM", "LlamaModel", parse_llama},
      {"qwen2", "Qwen2ForCausalLM", "Qwen2Model", parse_qwen2},
      {"qwen3", "Qwen3ForCausalLM", "Qwen3Model", parse_qwen3},
      {"mistral", "MistralForCausalLM", "MistralModel", parse_mistral},
      {"ministral", "MinistralForCausalLM", "MinistralModel", parse_ministral},
      {"smollm3", "SmolLM3ForCausalLM", "SmolLM3Model", parse_smollm3},
      {"granite", "GraniteForCausalLM", "GraniteModel", parse_granite},
      {"gemma", "GemmaForCausalLM", "GemmaModel", parse_gemma},
      {"gemma2", "Gemma2ForCausalLM", "Gemma2Model", parse_gemma2},
      {"gemma3_text", "Gemma3ForCausalLM", "Gemma3TextModel", parse_gemma3_text},
      {"gemma3", "Gemma3ForConditionalGeneration", "Gemma3Model", parse_gemma3_text, "text_config", "gemma3_text"},
      {"phi3", "Phi3ForCausalLM", "Phi3Model", parse_phi3},
      {"olmo2", "Olmo2ForCausalLM", "Olmo2Model", parse_olmo2},
      {"olmo3", "Olmo3ForCausalLM", "Olmo3Model", parse_olmo3},
      {"glm4", "Glm4ForCausalLM", "Glm4Model", parse_glm4},
      {"mixtral", "MixtralForCausalLM", "MixtralModel", parse_mixtral},
      {"qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeModel", parse_qwen2_moe},
      {"qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel", parse_qwen3_moe},
      {"olmoe", "OlmoeForCausalLM", "OlmoeModel", parse_olmoe},
  };
  return kFamilies;
}

DecoderConfig parse_decoder_config(const nlohmann::json& json, const DecoderFamily& family) {
  const ConfigReader whole(json, "config.json");
  if (family.part == nullptr) {
    DecoderConfig decoder = family.parse(whole);
    whole.refuse_unread(family.model_type, harmless_keys());
    return decoder;
  }
  if (!whole.has(family.part)) whole.missing(family.part, "the config of the text model");
  const ConfigReader part(whole.at(family.part), c10::str("config.json: ", family.part));
  DecoderConfig decoder = family.parse(part);
  part.choice("model_type", family.part_model_type, {family.part_model_type});
  part.refuse_unread(family.part_model_type, harmless_keys());
  whole.refuse_quantized();
  const std::string tied = "tie_word_embeddings";
  if (whole.boolean(tied, decoder.tie_word_embeddings) != decoder.tie_word_embeddings) {
    whole.refuse(tied, c10::str("absent, or as in ", family.part));
  }
  decoder.is_part = true;
  return decoder;
}

nlohmann::json config_of_decoder(const nlohmann::json& config, const DecoderFamily& family) {
  if (family.part == nullptr) return config;
  nlohmann::json part = config.at(family.part);
  part["model_type"] = family.part_model_type;
  part["architectures"] = {decoder_family(family.part_model_type).class_name};
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) part[key] = config[key];
  }
  return part;
}

const DecoderFamily& decoder_family(const std::string& model_type) {
  for (const DecoderFamily& family : decoder_families()) {
    if (model_type == family.model_type) return family;
  }
  TORCH_CHECK(false, "no family of decoders has the model_type \"", model_type, "\"");
}

DecoderConfig parse_decoder_config(const nlohmann::json& json, const std::string& model_type) {
  return parse_decoder_config(json, decoder_family(model_type));
}

}  // namespace fsdp::models
