// What config.json says about a DHEN.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/feature_embedding.h"

namespace fsdp::models {

// Published models come without a config.json: keys are our own.
struct DhenConfig {
  int64_t num_numeric_features = 0;
  std::vector<int64_t> table_rows;  // of each categorical feature's table
  int64_t embedding_width = 0;
  int64_t num_hidden_layers = 0;
  // The ensemble of every layer: names of dhen_interaction_names(), each at most once. Their outputs stand one behind
  // another in this order.
  std::vector<std::string> interactions;
  int64_t interaction_outputs = 0;     // embeddings that each of them makes
  int64_t num_attention_heads = 1;     // divides embedding_width; of "attention"
  int64_t cross_rank = 64;             // of the product of "cross"
  int64_t mlp_size = 0;                // hidden units of "mlp"; needed with it
  std::vector<int64_t> numeric_sizes;  // hidden units of what makes an embedding of the numeric features; may be empty
  std::vector<int64_t> head_sizes;     // hidden units of what makes the logit; may be empty
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  int64_t embedding_seed = 0;  // of the tables' initial values

  // Embeddings that the first layer gets: one of all numeric features, one of each categorical one.
  int64_t input_embeddings() const { return 1 + static_cast<int64_t>(table_rows.size()); }
  // Embeddings behind each layer.
  int64_t layer_embeddings() const { return static_cast<int64_t>(interactions.size()) * interaction_outputs; }
  EmbeddingTables tables() const { return {table_rows, embedding_width, static_cast<uint64_t>(embedding_seed)}; }
  // Numbers in all tables.
  double sparse_parameters() const;
};

// "attention", "cross", "dot_product", "linear", "mlp" (dhen.h says what they do).
const std::vector<std::string>& dhen_interaction_names();

// Required keys: num_numeric_features, table_rows, embedding_width, num_hidden_layers, interactions,
// interaction_outputs; the others have the defaults above. Wrong types, values out of range and other keys are errors
// that name the key, its value and what is accepted.
DhenConfig parse_dhen_config(const nlohmann::json& config);

// A config.json of the size of the DHEN in the FSDP paper (Zhao et al., 2023, section 5.1): 550 million dense and 768
// billion sparse parameters, within 1 %. The paper gives these two numbers and nothing of tables, widths or layers:
// those are ours.
nlohmann::json dhen_550m();

}  // namespace fsdp::models
