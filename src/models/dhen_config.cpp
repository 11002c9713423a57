#include "models/dhen_config.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "models/config_reader.h"

namespace fsdp::models {
namespace {

const std::vector<std::string>& dhen_keys() {
  static const std::vector<std::string> kKeys{
      "num_numeric_features", "table_rows",          "embedding_width",   "num_hidden_layers", "interactions",
      "interaction_outputs",  "num_attention_heads", "cross_rank",        "mlp_size",          "numeric_sizes",
      "head_sizes",           "layer_norm_eps",      "initializer_range", "embedding_seed"};
  return kKeys;
}

std::vector<std::string> parse_interactions(const ConfigReader& config) {
  const auto& names = dhen_interaction_names();
  const std::string accepted = "a list without repetitions of " + c10::Join(", ", names);
  if (!config.has("interactions")) config.missing("interactions", accepted);
  const nlohmann::json& list = config.at("interactions");
  if (!list.is_array() || list.empty()) config.refuse("interactions", accepted);
  std::vector<std::string> result;
  for (const nlohmann::json& one : list) {
    const std::string name = one.is_string() ? one.get<std::string>() : std::string();
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    const bool again = std::find(result.begin(), result.end(), name) != result.end();
    if (!known || again) config.refuse("interactions", accepted);
    result.push_back(name);
  }
  return result;
}

// An absent key is an empty list.
std::vector<int64_t> parse_sizes(const ConfigReader& config, const std::string& key) {
  const nlohmann::json& list = config.at(key);
  return !config.has(key) || (list.is_array() && list.empty()) ? std::vector<int64_t>{} : config.positive_integers(key);
}

void check_interactions(const ConfigReader& config, const DhenConfig& dhen) {
  const auto has = [&](const char* name) {
    return std::find(dhen.interactions.begin(), dhen.interactions.end(), name) != dhen.interactions.end();
  };
  if (has("attention") && dhen.embedding_width % dhen.num_attention_heads != 0) {
    config.refuse("num_attention_heads", c10::str("a divisor of embedding_width, ", dhen.embedding_width));
  }
  if (has("mlp") && dhen.mlp_size == 0) config.missing("mlp_size", "hidden units of the interaction \"mlp\"");
  if (has("dot_product") && dhen.layer_embeddings() < 2 && dhen.num_hidden_layers > 1) {
    config.refuse("interaction_outputs", "enough for two embeddings, which \"dot_product\" needs");
  }
}

}  // namespace

const std::vector<std::string>& dhen_interaction_names() {
  static const std::vector<std::string> kNames{"attention", "cross", "dot_product", "linear", "mlp"};
  return kNames;
}

double DhenConfig::sparse_parameters() const {
  double rows = 0;
  for (const int64_t count : table_rows) rows += static_cast<double>(count);
  return rows * static_cast<double>(embedding_width);
}

DhenConfig parse_dhen_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  config.refuse_all_but("a DHEN", dhen_keys());
  DhenConfig dhen;
  dhen.num_numeric_features = config.positive_integer("num_numeric_features");
  dhen.table_rows = config.positive_integers("table_rows");
  dhen.embedding_width = config.positive_integer("embedding_width");
  dhen.num_hidden_layers = config.positive_integer("num_hidden_layers");
  dhen.interactions = parse_interactions(config);
  dhen.interaction_outputs = config.positive_integer("interaction_outputs");
  dhen.num_attention_heads = config.positive_integer("num_attention_heads", dhen.num_attention_heads);
  dhen.cross_rank = config.positive_integer("cross_rank", dhen.cross_rank);
  if (config.has("mlp_size")) dhen.mlp_size = config.positive_integer("mlp_size");
  dhen.numeric_sizes = parse_sizes(config, "numeric_sizes");
  dhen.head_sizes = parse_sizes(config, "head_sizes");
  dhen.layer_norm_eps = config.number("layer_norm_eps", dhen.layer_norm_eps, 0.0, 1.0);
  dhen.initializer_range = config.number("initializer_range", dhen.initializer_range, 0.0, 1.0);
  dhen.embedding_seed = config.integer("embedding_seed").value_or(dhen.embedding_seed);
  check_interactions(config, dhen);
  return dhen;
}

nlohmann::json dhen_550m() {
  // A few large tables have nearly all rows, as is usual in practice.
  std::vector<int64_t> table_rows(24, 245'000'000);
  table_rows.resize(255, 500'000);
  return {{"model_type", "dhen"},
          {"architectures", {"DHEN"}},
          {"num_numeric_features", 512},
          {"table_rows", table_rows},
          {"embedding_width", 128},
          {"num_hidden_layers", 4},
          {"interactions", {"attention", "cross", "dot_product", "mlp"}},
          {"interaction_outputs", 32},
          {"num_attention_heads", 4},
          {"cross_rank", 512},
          {"mlp_size", 2176},
          {"numeric_sizes", {512}},
          {"head_sizes", {1024, 512}}};
}

}  // namespace fsdp::models
