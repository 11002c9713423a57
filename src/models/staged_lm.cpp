#include "models/staged_lm.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <utility>

namespace fsdp::models {

void StagedLM::keep(const StagePart& part) {
  TORCH_CHECK(0 <= part.begin && part.begin <= part.end && part.end <= num_blocks(), "StagedLM::keep: blocks [",
              part.begin, ", ", part.end, ") are no part of a model with ", num_blocks(), " blocks");
  drop_all_but(part);
}

torch::nn::ModuleList keep_entries(torch::nn::Module& owner, const std::string& name, const torch::nn::ModuleList& list,
                                   int64_t begin, int64_t end) {
  torch::nn::ModuleList kept;
  for (int64_t i = 0; i < static_cast<int64_t>(list->size()); ++i) {
    const bool stays = begin <= i && i < end;
    kept->push_back(stays ? list->ptr(static_cast<size_t>(i)) : std::make_shared<torch::nn::Module>("Dropped"));
  }
  owner.replace_module(name, kept);
  return kept;
}

StagedLM& staged_lm(CausalLM& model) {
  auto* staged = dynamic_cast<StagedLM*>(&model);
  TORCH_CHECK(staged != nullptr, c10::demangle(typeid(model).name()),
              " cannot be divided into the stages of a pipeline: it does not implement models::StagedLM");
  return *staged;
}

std::vector<StagePart> stage_parts(int64_t blocks, int64_t stages, int64_t first_stage_less, int64_t last_stage_less) {
  TORCH_CHECK(stages >= 1, "stage_parts: ", stages, " stages; there must be at least one");
  TORCH_CHECK(first_stage_less >= 0 && last_stage_less >= 0, "stage_parts: the first stage cannot have ",
              first_stage_less, " blocks less, and the last one ", last_stage_less, " less: neither may be negative");
  const int64_t counted = blocks + first_stage_less + last_stage_less;
  std::vector<StagePart> parts;
  int64_t begin = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const bool is_first = stage == 0, is_last = stage == stages - 1;
    int64_t own = counted / stages + (stage < counted % stages ? 1 : 0);
    if (is_first) own -= first_stage_less;
    if (is_last) own -= last_stage_less;
    TORCH_CHECK(own >= (is_first || is_last ? 0 : 1), "stage_parts: ", blocks, " blocks, of which the first stage has ",
                first_stage_less, " less and the last one ", last_stage_less, " less, do not suffice for ", stages,
                " stages");
    parts.push_back({begin, begin + own, is_first, is_last});
    begin += own;
  }
  return parts;
}

std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&, int)> stage_forward(
    StagedLM& model, StagePart part, std::function<StageBatch(int)> batch) {
  return [&model, part, batch = std::move(batch)](const std::vector<at::Tensor>& inputs, int micro_batch) {
    const StageBatch tokens = batch(micro_batch);
    const Documents documents = model.documents_in(tokens.input_ids);
    StagedLM::Activations activations = part.is_first ? model.embed(tokens.input_ids, documents) : inputs;
    activations = model.run_blocks(std::move(activations), part.begin, part.end, documents);
    if (!part.is_last) return activations;
    const LanguageModelOutput output = model.finish(std::move(activations), tokens.labels);
    TORCH_CHECK(output.loss.defined(), "stage_forward: micro-batch ", micro_batch, " has no labels");
    return std::vector<at::Tensor>{output.loss * tokens.loss_weight};
  };
}

}  // namespace fsdp::models
