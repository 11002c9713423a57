// Tensor parallelism: each rank of a group holds a part of a layer's weights and computes a part of its result
// (Megatron-LM, Shoeybi et al. 2019, section 3). It works under FSDP, which shards each part over the data-parallel
// ranks.
//
// Modules stay as they are. A plan says how the weights of which modules are cut; fully_shard cuts them, and the engine
// adds the communication where an operator uses a cut weight:
//
//   auto mesh = fsdp::DeviceMesh::make(world, {{"dp_shard", -1}, {"tp", 2}});
//   options.mesh = mesh.data_parallel();
//   options.tensor_parallel = {mesh.group("tp"),
//                              {{"layers.*.up", fsdp::SplitStyle::kColwise},
//                               {"layers.*.down", fsdp::SplitStyle::kRowwise}}};
//
// All ranks of the group must compute on the same input. Values that a module computes from parts (the output of a
// column-wise layer) differ from rank to rank until a row-wise layer adds them up.
//
// Sequence parallelism (Korthikanti et al. 2022, section 4.2.2) divides what lies between, too: norms, residuals and
// their activations. With TensorParallelOptions::sequence_dim, row-wise layers and embeddings give each rank an equal
// part of the positions, and column-wise layers gather them: the same bytes as the sums without it. Norms between them
// need rules of kSharedByParts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::flat {
struct PartOfWhole;
}  // namespace fsdp::flat
namespace fsdp::tensor_parallel {
class Exchange;
}  // namespace fsdp::tensor_parallel

namespace fsdp {

// How the parameters of a module are cut; in brackets, the names in the plans of transformers. A *weight* has two
// dimensions, a *bias* one.
enum class SplitStyle : uint8_t {
  // The weight is cut along its outputs, the bias as well. Each rank computes a part of the outputs (colwise).
  kColwise,
  // As kColwise, but the outputs are gathered, so that each rank has all of them (colwise_gather_output).
  kColwiseGathered,
  // The weight is cut along its inputs, of which each rank has the matching part. The ranks' products are added up. The
  // bias stays whole, and is added once (rowwise).
  kRowwise,
  // As kRowwise, but each rank has the whole input, and takes its part (rowwise_split_input).
  kRowwiseOfWhole,
  // The table of an embedding is cut along its rows, that is, along the vocabulary (embedding_rowwise). Each rank looks
  // up its own rows, and the results are added up. A head that shares the table, and has no rule of its own, gathers
  // its outputs.
  kVocabulary,
  // All parameters stay whole, but each rank uses them on its part of the values, so their gradients are added up over
  // the ranks: a norm of each head's queries, or, with sequence parallelism, any module between a row-wise and a
  // column-wise layer (replicated_with_grad_allreduce).
  kSharedByParts,
};

// "colwise", "rowwise", …: the names of transformers.
const char* to_string(SplitStyle style);

// The first rule whose pattern matches applies to the parameters that a module holds itself.
struct TensorParallelRule {
  // FQNs of modules. '*' stands for one component: "layers.*.self_attn.q_proj".
  std::string modules;
  SplitStyle style = SplitStyle::kColwise;
  // The number of groups of neighbouring outputs (of kRowwise: of inputs) that are never cut. Ranks get whole groups,
  // and the first ranks one more if they cannot have the same number. Of an attention with heads that share keys and
  // values: the number of heads of keys, for all four projections. 0: one group for each output.
  int64_t groups = 0;
  // The sizes of layers that share this weight, one after the other along its outputs: each is cut by itself, into the
  // same number of groups. Empty: the weight is one layer.
  std::vector<int64_t> sections = {};
  // The dimension of the weight that makes the outputs: 0, as in torch::nn::Linear, or 1.
  int64_t output_dim = 0;
};

struct TensorParallelOptions {
  // The ranks that together hold the parameters: DeviceMesh::group("tp"). Neighbours on a host, because they exchange
  // activations several times a layer.
  std::shared_ptr<Communicator> group;
  // Must be the same on all ranks of the group. Modules that no rule matches stay whole, on each rank.
  std::vector<TensorParallelRule> plan;
  // If set, sequence parallelism: the dimension of positions, 1 of [batch, sequence, channels]. All inputs of
  // column-wise layers, and what row-wise layers and embeddings return, have a part of the positions; the inputs of
  // embeddings have all of them. Ranks must divide the positions. Must be the same on all ranks of the group.
  std::optional<int64_t> sequence_dim = std::nullopt;
};

// Moves between whole sequences and the parts that ranks hold between layers, for code that needs the others'
// positions. Both functions are collective over the group, in forward or in backward. Threads: one at a time.
class SplitSequence {
 public:
  // `dim`: the dimension of positions.
  SplitSequence(const std::shared_ptr<Communicator>& group, int64_t dim);

  // Ranks of the group.
  int parts() const;
  // Returns all positions, of which `mine` are this rank's. All ranks must do the same with the result: backward takes
  // this rank's part of its gradient.
  at::Tensor gather(const at::Tensor& mine) const;
  // Returns a copy of this rank's positions of values that all ranks have. Throws if the ranks do not divide the
  // positions. Backward gathers.
  at::Tensor take(const at::Tensor& whole) const;

 private:
  std::shared_ptr<tensor_parallel::Exchange> exchange_;
  int64_t dim_;
};

// The outputs of a layer that is split by kColwise without groups, as classes: a loss of all of them that no rank ever
// has together. All functions are collective over the group. Threads: one at a time.
class SplitClasses {
 public:
  // `classes`: on all ranks of `group` together.
  SplitClasses(const std::shared_ptr<Communicator>& group, int64_t classes);

  // Returns the cross-entropy of logits [..., this rank's classes] and labels [...] int64, from 0 to classes - 1: the
  // mean over labels that are not `ignored_label`, NaN if there are none, the same on all ranks. Computed in fp32, or
  // in fp64 for fp64 logits. Ranks exchange three numbers for each label. Double backward is refused.
  at::Tensor mean_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, int64_t ignored_label = -100) const;

  // Returns the logits of all classes.
  at::Tensor gather(const at::Tensor& logits) const;

 private:
  std::shared_ptr<const flat::PartOfWhole> part_;
  std::shared_ptr<tensor_parallel::Exchange> exchange_;
};

}  // namespace fsdp
