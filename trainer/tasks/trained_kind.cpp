#include "tasks/trained_kind.h"

#include <c10/util/StringUtil.h>

#include "config/config_schema.h"
#include "config/errors.h"
#include "formats/common/json_text.h"

namespace fsdp::trainer {

void refuse_unless_default(const char* key, const Config& config, const char* kind) {
  const nlohmann::json only = value_of(*find_config_key(key), Config{});
  if (value_of(*find_config_key(key), config) == only) return;
  refuse_value(key, config,
               c10::str("does not apply: the model is ", kind, "; leave it at ", formats::json_text(only)));
}

void refuse_value(const char* key, const Config& config, const std::string& why) {
  const nlohmann::json value = value_of(*find_config_key(key), config);
  throw ConfigError(c10::str("key \"", key, "\": ", formats::json_text(value), " ", why));
}

void refuse_unless_null(const char* key, const Config& config, const char* kind) {
  if (value_of(*find_config_key(key), config).is_null()) return;
  refuse_value(key, config, c10::str("does not apply: the model is ", kind, "; accepted: null"));
}

void refuse_keys_of_language_models(const Config& config, const char* kind) {
  refuse_unless_null("max_target_length", config, kind);
  refuse_unless_default("fused_loss", config, kind);
  refuse_unless_default("attn_mask_type", config, kind);
  refuse_unless_default("max_seq_length", config, kind);
}

void refuse_keys_of_tables(const Config& config, const char* kind) {
  refuse_unless_null("sparse_learning_rate", config, kind);
  refuse_unless_default("sparse_optimizer", config, kind);
}

}  // namespace fsdp::trainer
