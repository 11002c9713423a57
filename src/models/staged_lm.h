// Causal language models as the stages of a pipeline (fsdp/pipeline.h).
//
//   auto model = fsdp::deferred_init([&] { return make_and_initialize(config); });       // without memory
//   auto& staged = staged_lm(*model);
//   const StagePart part = stage_parts(staged.num_blocks(), stages).at(stage);
//   staged.keep(part);                                                                   // the rest is never allocated
//   auto sharded = fsdp::fully_shard(*model, options);
//   fsdp::Pipeline pipeline(mesh, schedule, {{stage, sharded, stage_forward(staged, part, batch)}});
//
// Parameters keep the names and the initial values of the whole model, into however many stages it is cut.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/causal_lm.h"

namespace fsdp::models {

// A stage's part of a model: its blocks [begin, end), counted from 0. The first and the last stage may have none.
struct StagePart {
  int64_t begin = 0;
  int64_t end = 0;
  bool is_first = false;  // has the embedding
  bool is_last = false;   // has the final norm and the head

  // A tied one is also the head.
  bool has_embedding(bool is_tied) const { return is_first || (is_last && is_tied); }
};

// A model that can be run and kept in parts. With documents = documents_in(input_ids), its forward(input_ids, labels)
// equals finish(run_blocks(embed(input_ids, documents), 0, num_blocks(), documents), labels).
class StagedLM {
 public:
  // Tensors between two blocks: the hidden states, [batch, sequence, width], and then the logits of the routers before
  // them, if the loss needs these.
  using Activations = std::vector<at::Tensor>;

  virtual ~StagedLM() = default;

  virtual int64_t num_blocks() const = 0;
  // See CausalLM.
  virtual Documents documents_in(const at::Tensor& input_ids) const = 0;
  virtual Activations embed(const at::Tensor& input_ids, const Documents& documents) = 0;
  virtual Activations run_blocks(Activations activations, int64_t begin, int64_t end, const Documents& documents) = 0;
  // `labels`: those of the input, not shifted, or undefined. Frees the hidden states before the loss.
  virtual LanguageModelOutput finish(Activations activations, const at::Tensor& labels) = 0;

  // Drops the parameters that this stage does not use. Call it once, before the model is sharded. Tied embeddings stay
  // on the first and on the last stage, under the name of the embedding. Running what was dropped is an error.
  void keep(const StagePart& part);
  // The FQN of the weight that the first and the last stage have in common: the model's embedding if it is also the
  // head, else empty. For PipelineOptions::tied_parameters.
  virtual std::string tied_parameter() const = 0;

 protected:
  // As keep; the blocks of `part` exist.
  virtual void drop_all_but(const StagePart& part) = 0;
};

// Replaces the list of blocks that `owner` has registered as `name` by one that has only the entries [begin, end).
// Empty modules take the places of the others, so that names stay. Returns the new list.
torch::nn::ModuleList keep_entries(torch::nn::Module& owner, const std::string& name, const torch::nn::ModuleList& list,
                                   int64_t begin, int64_t end);

// Returns a block of such a list. Throws if it was dropped.
template <typename Block>
std::shared_ptr<Block> kept_block(const torch::nn::ModuleList& list, int64_t index) {
  auto block = list->ptr<Block>(static_cast<size_t>(index));
  TORCH_CHECK(block, "block ", index, " of the model is not one of this stage's, which StagedLM::keep was told");
  return block;
}

// Drops a module that `owner` has registered as `name`.
template <typename Holder>
void drop(torch::nn::Module& owner, const char* name, Holder& holder) {
  owner.unregister_module(name);
  holder = nullptr;
}

// Returns a part of the model. Throws, naming it, if it was dropped.
template <typename Holder>
Holder& kept(Holder& holder, const char* name) {
  TORCH_CHECK(!holder.is_empty(), "this stage has no '", name, "': StagedLM::keep was told that others have it");
  return holder;
}

// Returns the model as one that can be divided into stages. Throws, naming its class, if it cannot be.
StagedLM& staged_lm(CausalLM& model);

// Returns the part of each stage, in order. As in torchtitan, the embedding counts as `first_stage_less` blocks and
// final norm and head as `last_stage_less`, and stages that do not divide evenly give the first of them one block more.
// Throws, naming the numbers, if a stage would have nothing to compute.
std::vector<StagePart> stage_parts(int64_t blocks, int64_t stages, int64_t first_stage_less = 1,
                                   int64_t last_stage_less = 1);

// The tokens of a micro-batch (see CausalLM::forward), and the factor of its loss: 1 / micro-batches for their mean.
struct StageBatch {
  at::Tensor input_ids;
  at::Tensor labels;
  double loss_weight = 1;
};

// Returns the function that PipelineStage::forward wants: computes this part from the outputs of the stage before.
// `batch` returns the micro-batch, on every stage the same one. The last stage returns the loss times its weight.
// `model` must outlive the result.
std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs, int micro_batch)> stage_forward(
    StagedLM& model, StagePart part, std::function<StageBatch(int micro_batch)> batch);

}  // namespace fsdp::models
