// The families of decoder-only transformers that are known: each is a parser of its config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/decoder/decoder_config.h"

namespace fsdp::models {

struct DecoderFamily {
  const char* model_type;       // in config.json, as the next two
  const char* class_name;       // in "architectures"
  const char* base_class_name;  // the class without the head, which some folders name
  // Reads a config. Keys that it does not ask for, and that change nothing in any family, are refused by
  // parse_decoder_config.
  DecoderConfig (*parse)(const ConfigReader& config);
  // The key of config.json whose object describes the text model, and the family of that object, if this is a family of
  // models that also take images. The text model alone is built, and is saved as a model of that family.
  const char* part = nullptr;
  const char* part_model_type = nullptr;
};

const std::vector<DecoderFamily>& decoder_families();

// Reads a config.json. Required keys: vocab_size, hidden_size, intermediate_size, num_hidden_layers,
// num_attention_heads. All others have the defaults of transformers. Wrong types, values out of range, unknown keys,
// and settings that are not supported are errors that name the key, its value and the accepted values.
DecoderConfig parse_decoder_config(const nlohmann::json& config, const DecoderFamily& family);
// Returns the config.json of the model that parse_decoder_config describes: the same, or that of the text model, with
// the dtype of the whole.
nlohmann::json config_of_decoder(const nlohmann::json& config, const DecoderFamily& family);
// Returns the family with this model_type, which must exist.
const DecoderFamily& decoder_family(const std::string& model_type);
// parse_decoder_config for the family with this model_type, which must exist.
DecoderConfig parse_decoder_config(const nlohmann::json& config, const std::string& model_type);

}  // namespace fsdp::models
