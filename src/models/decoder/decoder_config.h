// A decoder-only transformer as the fields in which its families differ. models/decoder/families.h makes one from a
// config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/experts.h"
#include "models/layers.h"
#include "models/loss.h"
#include "models/rope.h"

namespace fsdp::models {

// The part of queries and keys that an RMSNorm is applied to, before they are rotated.
enum class QueryKeyNorm : uint8_t {
  kNone,
  kHead,        // each head by itself: a weight of head_dim elements
  kProjection,  // all heads together: a weight for each output of the projection
};

// The names of a layer's norms, which say where they stand; a norm without a name does not exist. Those before stand at
// the input of attention and MLP, those after at the output, before it is added to the residual.
struct NormNames {
  std::string before_attention, after_attention, before_mlp, after_mlp;
};

// The experts that stand in the place of the MLP of some layers.
struct ExpertsConfig {
  RouterOptions router;
  int64_t intermediate_size = 0;                    // of each expert
  std::optional<int64_t> shared_intermediate_size;  // unset: no expert sees all tokens
  double jitter = 0.0;  // in training mode, inputs of experts are multiplied by random numbers from 1 ± jitter
  // Of the load-balancing loss (experts.h), which is added to the loss of predictions. Unset: there is none.
  std::optional<double> router_loss_coefficient;
};

// The attributes in which the layers of one model differ.
struct DecoderLayerConfig {
  bool has_experts = false;
  std::optional<int64_t> window;   // as in AttentionOptions
  std::optional<size_t> rope = 0;  // index into DecoderConfig::ropes; nothing: positions are not encoded
};

struct DecoderConfig {
  std::string model_type;  // as in config.json; used in errors
  bool is_part = false;    // the folder is of a model that also takes images, of which this is the text model
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  std::vector<DecoderLayerConfig> layers;
  std::vector<RopeConfig> ropes;
  std::optional<ExpertsConfig> experts;  // of the layers with has_experts

  double norm_eps = 1e-6;
  RMSNormKind norm_kind = RMSNormKind::kRoundedQuotient;
  NormNames norms = {"input_layernorm", "", "post_attention_layernorm", ""};
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;

  std::optional<double> projection_limit;  // largest magnitude of queries, keys and values before heads are split

  bool query_key_value_bias = false;
  bool output_bias = false;  // of attention's output projection
  bool mlp_bias = false;
  bool fused_query_key_value = false;  // one projection, qkv_proj
  bool fused_gate_up = false;          // one projection, gate_up_proj

  std::string activation = "silu";        // one of activation_names()
  std::optional<double> attention_scale;  // of query · key; unset: 1/sqrt(head_dim)
  std::optional<double> attention_softcap;
  double attention_dropout = 0.0;  // in training mode
  double residual_dropout = 0.0;   // of the outputs of attention and MLP, in training mode

  double embedding_multiplier = 1.0;
  bool rounds_embedding_multiplier = false;  // to fp32 and then to the dtype of the embedding, as in Gemma
  double residual_multiplier = 1.0;          // of the outputs of attention and MLP
  LogitScaling logits;

  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;  // from 0 to vocab_size - 1
  double initializer_range = 0.02;
};

}  // namespace fsdp::models
