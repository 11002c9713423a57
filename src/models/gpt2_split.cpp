// How GPT-2's weights are split over ranks.
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "models/gpt2.h"

namespace fsdp::models {
namespace {

using Rules = std::vector<TensorParallelRule>;

// Weights of Conv1D have their outputs in dimension 1.
void add_blocks(const GPT2Config& config, Rules& rules) {
  const std::string block = "transformer.h.*.";
  const int64_t size = config.n_embd, heads = config.n_head, output_dim = 1;
  rules.push_back({block + "attn.c_attn", SplitStyle::kColwise, heads, {size, size, size}, output_dim});
  rules.push_back({block + "attn.c_proj", SplitStyle::kRowwise, heads, {}, output_dim});
  rules.push_back({block + "mlp.c_fc", SplitStyle::kColwise, 0, {}, output_dim});
  rules.push_back({block + "mlp.c_proj", SplitStyle::kRowwise, 0, {}, output_dim});
}

}  // namespace

std::vector<TensorParallelRule> GPT2LMHeadModelImpl::tensor_parallel_plan() const {
  TORCH_CHECK(config_.resid_pdrop == 0 && config_.embd_pdrop == 0 && config_.attn_pdrop == 0,
              "tensor parallelism: gpt2 draws random numbers in forward (resid_pdrop ", config_.resid_pdrop,
              ", embd_pdrop ", config_.embd_pdrop, ", attn_pdrop ", config_.attn_pdrop,
              "), which would differ between the ranks that hold its parts. Set them to 0 in config.json");
  Rules rules;
  const auto modules = named_modules();
  // Stages of a pipeline may have no blocks.
  const bool has_blocks =
      std::any_of(modules.begin(), modules.end(), [](const auto& module) { return module.key().ends_with(".attn"); });
  if (has_blocks) add_blocks(config_, rules);
  if (split_positions()) {
    for (const char* norm : {"transformer.h.*.ln_1", "transformer.h.*.ln_2"}) {
      if (has_blocks) rules.push_back({norm, SplitStyle::kSharedByParts});
    }
    if (modules.contains("transformer.ln_f")) rules.push_back({"transformer.ln_f", SplitStyle::kSharedByParts});
    // Each rank gets the vectors of its own positions.
    if (modules.contains("transformer.wpe")) rules.push_back({"transformer.wpe", SplitStyle::kVocabulary});
  }
  add_vocabulary("transformer.wte", !lm_head_.is_empty(), rules);
  return rules;
}

}  // namespace fsdp::models
