// Tensor parallelism: each rank of a group holds a part of a layer's weights and computes a part of its result
// (Megatron-LM, Shoeybi et al. 2019, section 3). It works under FSDP, which shards each part over the data-parallel
// ranks.
//
// Modules stay as they are. A plan says how the weights of which modules are cut; fully_shard cuts them, and the engine
// adds the communication where an operator uses a cut weight:
//
//   auto mesh = fsdp::DeviceMesh::make(world, {{"dp_shard", -1}, {"tp", 2}});
//   options.mesh = mesh.data_parallel();
//   options.tensor_parallel = {{mesh.group("tp"),
//                               {{"layers.*.up", fsdp::SplitStyle::kColwise},
//                                {"layers.*.down", fsdp::SplitStyle::kRowwise}}}};
//
// All ranks of the group must compute on the same input. Values that a module computes from parts (the output of a
// column-wise layer) differ from rank to rank until a row-wise layer adds them up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

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
  // its
  // outputs.
  kVocabulary,
  // All parameters stay whole, but each rank uses them on its part of the values, so their gradients are added up over
  // the ranks: a norm of each head's queries (replicated_with_grad_allreduce).
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
};

}  // namespace fsdp
