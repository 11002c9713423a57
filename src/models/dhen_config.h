// The config.json of a DHEN.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/feature_embedding.h"

namespace fsdp::models {

// Published models have no config.json, so the keys are specific to this library.
struct DhenConfig {
  int64_t num_numeric_features = 0;
  std::vector<int64_t> table_rows;  // of the table of each categorical feature
  int64_t embedding_width = 0;
  int64_t num_hidden_layers = 0;
  // The ensemble of every layer: names from dhen_interaction_names(), each at most once. The outputs are concatenated
  // in this order.
  std::vector<std::string> interactions;
  int64_t interaction_outputs = 0;     // output embeddings of each interaction
  int64_t num_attention_heads = 1;     // divides embedding_width; of "attention"
  int64_t cross_rank = 64;             // rank of the product in "cross"
  int64_t mlp_size = 0;                // hidden units of "mlp"; required with it
  std::vector<int64_t> numeric_sizes;  // hidden units of the numeric features' MLP; may be empty
  std::vector<int64_t> head_sizes;     // hidden units of the MLP that computes the logit; may be empty
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  int64_t embedding_seed = 0;  // for the tables' initial values

  // The number of embeddings that the first layer gets: one for all numeric features, and one for each categorical
  // feature.
  int64_t input_embeddings() const { return 1 + static_cast<int64_t>(table_rows.size()); }
  // The number of embeddings that each layer returns.
  int64_t layer_embeddings() const { return static_cast<int64_t>(interactions.size()) * interaction_outputs; }
  EmbeddingTables tables() const { return {table_rows, embedding_width, static_cast<uint64_t>(embedding_seed)}; }
  // The number of elements of all tables.
  double sparse_parameters() const;
};

// "attention", "cross", "dot_product", "linear" and "mlp", which dhen.h describes.
const std::vector<std::string>& dhen_interaction_names();

// Required keys: num_numeric_features, table_rows, embedding_width, num_hidden_layers, interactions,
// interaction_outputs; the others have the defaults above. Wrong types, values out of range and unknown keys are errors
// that name the key, its value and the accepted values.
DhenConfig parse_dhen_config(const nlohmann::json& config);

// A config.json of the size of the DHEN in the FSDP paper (Zhao et al., 2023, section 5.1): 550 million dense and 768
// billion sparse parameters, within 1 %. The paper gives only these two numbers; tables, widths and layers are choices
// of this library.
nlohmann::json dhen_550m();

}  // namespace fsdp::models
