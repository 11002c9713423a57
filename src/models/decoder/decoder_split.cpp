// How a decoder's weights are split over ranks. The names are those of transformers' plans.
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/decoder/decoder.h"

namespace fsdp::models {
namespace {

using Rules = std::vector<TensorParallelRule>;

void check_draws_nothing(const DecoderConfig& config) {
  const bool jitters = config.experts && config.experts->jitter > 0;
  TORCH_CHECK(config.attention_dropout == 0 && config.residual_dropout == 0 && !jitters,
              "tensor parallelism: ", config.model_type, " draws random numbers in forward (attention_dropout ",
              config.attention_dropout, ", dropout of residuals ", config.residual_dropout,
              jitters ? ", router_jitter_noise" : "",
              "), which would differ between the ranks that hold its parts. Set them to 0 in config.json");
}

// Heads of queries stay with their head of keys.
void add_attention(const DecoderConfig& config, Rules& rules) {
  const std::string attention = "model.layers.*.self_attn.";
  const int64_t groups = config.num_key_value_heads;
  const int64_t queries = config.num_attention_heads * config.head_dim, keys = groups * config.head_dim;
  // A norm over all heads needs all of them.
  const bool whole = config.query_key_norm == QueryKeyNorm::kProjection;
  const SplitStyle in = whole ? SplitStyle::kColwiseGathered : SplitStyle::kColwise;
  const SplitStyle out = whole ? SplitStyle::kRowwiseOfWhole : SplitStyle::kRowwise;
  if (config.fused_query_key_value) {
    rules.push_back({attention + "qkv_proj", in, groups, {queries, keys, keys}});
  } else {
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) rules.push_back({attention + name, in, groups});
  }
  rules.push_back({attention + "o_proj", out, groups});
  if (config.query_key_norm == QueryKeyNorm::kHead) {
    for (const char* name : {"q_norm", "k_norm"}) rules.push_back({attention + name, SplitStyle::kSharedByParts});
  }
}

// `mlp`: the prefix of its modules.
void add_mlp(const DecoderConfig& config, const std::string& mlp, int64_t size, Rules& rules) {
  if (config.fused_gate_up) {
    rules.push_back({mlp + "gate_up_proj", SplitStyle::kColwise, size, {size, size}});
  } else {
    for (const char* name : {"gate_proj", "up_proj"}) rules.push_back({mlp + name, SplitStyle::kColwise});
  }
  rules.push_back({mlp + "down_proj", SplitStyle::kRowwise});
}

// Adds the rules of the modules that are used on a part of the positions: all but attention and MLPs.
void add_shared_by_positions(const DecoderConfig& config, bool has_experts, bool has_shared_expert, Rules& rules) {
  const std::string layer = "model.layers.*.";
  const NormNames& norms = config.norms;
  for (const std::string& name : {norms.before_attention, norms.after_attention, norms.before_mlp, norms.after_mlp}) {
    if (!name.empty()) rules.push_back({layer + name, SplitStyle::kSharedByParts});
  }
  if (has_experts) {
    for (const char* name : {"mlp.gate", "mlp.experts"}) rules.push_back({layer + name, SplitStyle::kSharedByParts});
  }
  if (has_shared_expert) rules.push_back({layer + "mlp.shared_expert_gate", SplitStyle::kSharedByParts});
}

}  // namespace

std::vector<TensorParallelRule> DecoderForCausalLMImpl::tensor_parallel_plan() const {
  check_draws_nothing(config_);
  Rules rules;
  const auto modules = named_modules();
  const auto has = [&](const std::string& end) {
    return std::any_of(modules.begin(), modules.end(), [&](const auto& module) { return module.key().ends_with(end); });
  };
  add_vocabulary("model.embed_tokens", !lm_head_.is_empty(), rules);
  // Stages of a pipeline may have none of a kind.
  const bool has_shared_expert = has(".mlp.shared_expert");
  if (has(".self_attn")) add_attention(config_, rules);
  if (has(".mlp.down_proj")) add_mlp(config_, "model.layers.*.mlp.", config_.intermediate_size, rules);
  if (has_shared_expert) {
    add_mlp(config_, "model.layers.*.mlp.shared_expert.", *config_.experts->shared_intermediate_size, rules);
  }
  if (split_positions()) {
    if (has(".self_attn")) add_shared_by_positions(config_, has(".mlp.experts"), has_shared_expert, rules);
    if (modules.contains("model.norm")) rules.push_back({"model.norm", SplitStyle::kSharedByParts});
  }
  return rules;
}

}  // namespace fsdp::models
