// State dicts: saving and loading the values of a sharded model and the state of its optimizer by name.
//
//   auto values = fsdp::full_state_dict(*sharded, *model, {.rank0_only = true, .offload_to_cpu = true});
//   auto state = fsdp::full_optimizer_state(*sharded, *fsdp::state_of(optimizer), {.rank0_only = true});
//   …
//   fsdp::load_full_state_dict(*sharded, *model, values, {.from_rank0 = true});
//   fsdp::load_full_optimizer_state(*sharded, *fsdp::state_of(optimizer), state, {.from_rank0 = true});
//
// |         | what a rank gets                   | communication        | loads into
// | full    | whole tensors                      | gathers unit by unit | anything with these names, sharded or not
// | sharded | its parts of each tensor           | none                 | ranks that are given the parts that they hold
// | local   | its flat shards, padding included  | none                 | the same units over the same ranks
//
// Contents: parameters, in the dtype of the shards, and buffers and parameters that are not sharded
// (Options::ignored_parameters), as they are. Keys are the FQNs of `module`, which must be the module that `model` was
// made of. A shared parameter appears under each of its names and may be loaded from any of them; values under several
// of its names must be bitwise equal. An optimizer's state contains it under its first name, and is loaded in the same
// way as its values.
//
// Loading copies. All loading functions are collective. Before any rank changes anything, the ranks agree on what fits,
// also for the optimizer (OptimizerState), so that an error, which all ranks get, leaves everything unchanged. Loading
// first releases the units; later gathers see the new values. Running a backward whose forward came before the load is
// an error, as after an optimizer step. Threads: as for training.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"

namespace fsdp {

// ---------------------------------------------------------------- full

struct FullLoadOptions {
  bool strict = true;  // as in LoadOptions
  Rename rename = {};
  // true: rank 0's values are loaded, and sent one tensor after the other; the values of other ranks are not read and
  // may be empty. false: each rank takes the parts that it holds from its own values, which must be the same on all
  // ranks.
  bool from_rank0 = false;
};

using FullStateDict = std::map<std::string, at::Tensor>;

// Returns copies, in the parameters' memory formats, on the device where parameters are used. With rank0_only the other
// ranks get nothing. No rank holds more than one unit in addition to its shards and the result. Collective.
FullStateDict full_state_dict(ShardedModule& model, const torch::nn::Module& module,
                              const FullParameterOptions& options = {});

// Like full_state_dict, but calls `visit` with one name and tensor after the other instead of returning all of them. A
// tensor is valid only during the call. Names of a shared parameter follow each other. Collective: `visit` may do
// nothing on some ranks, but must not throw on only some of them.
void for_each_full_tensor(ShardedModule& model, const torch::nn::Module& module,
                          const std::function<void(const std::string& name, const at::Tensor& full)>& visit,
                          const FullParameterOptions& options = {});

// Loads whole tensors, which may be on any device.
LoadReport load_full_state_dict(ShardedModule& model, torch::nn::Module& module, const FullStateDict& values,
                                const FullLoadOptions& options = {});

// ---------------------------------------------------------------- sharded

struct TensorPart {
  int64_t begin = 0;  // elements [begin, end) of the tensor, in memory order
  int64_t end = 0;
  at::Tensor values;  // 1-D
};

struct ShardedTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;     // of the whole tensor
  std::vector<int64_t> strides;   // of the whole tensor, if it is not row-major; else empty
  std::vector<TensorPart> parts;  // in any order; overlaps must agree; empty: the rank holds nothing
};

using ShardedStateDict = std::map<std::string, ShardedTensor>;

struct ShardedStateOptions {
  bool offload_to_cpu = false;  // copies on the host
};

// Returns this rank's parts of all tensors. The parts are views of the shards, and change with them, unless they are
// offloaded. Tensors that are not sharded are whole on each rank. Every rank has all names. Does not communicate.
ShardedStateDict sharded_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                    const ShardedStateOptions& options = {});

// Adds the parts of another rank. A tensor of another dtype, shape or memory format is an error that names it. Does not
// communicate.
void add_parts(ShardedStateDict& to, const ShardedStateDict& others);

// Loads parts. They must cover the elements that this rank holds, or the whole tensor if its memory order differs in
// this model. If the model is sharded differently, pass the parts of several ranks (add_parts).
LoadReport load_sharded_state_dict(ShardedModule& model, torch::nn::Module& module, const ShardedStateDict& values,
                                   const LoadOptions& options = {});

// ---------------------------------------------------------------- local

// The parameters in one flat shard of one rank.
struct FlatShardLayout {
  std::vector<std::string> fqns;  // of the parameters, in memory order; the first name of each
  std::vector<int64_t> numels;    // of the whole parameters
  // The strides of the whole parameters, and the dimension in which each is cut (Options::shard_dim).
  std::vector<std::vector<int64_t>> strides;
  std::vector<int64_t> shard_dims;
  int64_t rank = 0;  // index among the `factor` shards
  int64_t factor = 1;
  int64_t shard_numel = 0;  // padding included
  int64_t padding = 0;      // elements of padding, summed over all ranks
  ShardCut cut = ShardCut::kFlat;
  bool operator==(const FlatShardLayout& other) const {
    return std::tie(fqns, numels, strides, shard_dims, rank, factor, shard_numel, padding, cut) ==
           std::tie(other.fqns, other.numels, other.strides, other.shard_dims, other.rank, other.factor,
                    other.shard_numel, other.padding, other.cut);
  }
};

struct LocalShard {
  FlatShardLayout layout;
  at::Tensor shard;  // 1-D
};

// Keys are "<unit>.flat_param" ("<unit>.flat_param_2", …) for either value of use_orig_params.
struct LocalStateDict {
  std::map<std::string, LocalShard> shards;
  std::map<std::string, at::Tensor> unsharded;  // buffers and parameters that are not sharded
};

// Returns this rank's flat shards: views, like the parts of sharded_state_dict. Does not communicate.
LocalStateDict local_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                const ShardedStateOptions& options = {});

// Loads flat shards. A shard of another layout is mismatched; the report says in what. `strict` as in LoadOptions.
LoadReport load_local_state_dict(ShardedModule& model, torch::nn::Module& module, const LocalStateDict& values,
                                 bool strict = true);

// ---------------------------------------------------------------- optimizer

// A parameter group. Members are names of parameters, or of leaves in a LocalOptimizerState.
struct ParameterGroup {
  std::vector<std::string> parameters;
  std::map<std::string, double> options;  // as OptimizerState::options
};

// Parameters that have had no gradient appear only in `groups`.
struct FullOptimizerState {
  std::map<std::string, LeafState> state;  // by FQN; tensors have the parameter's shape
  std::vector<ParameterGroup> groups;
};

struct ShardedLeafState {
  std::map<std::string, ShardedTensor> tensors;
  std::map<std::string, double> scalars;
};
struct ShardedOptimizerState {
  std::map<std::string, ShardedLeafState> state;  // by FQN, for parameters of which this rank holds elements
  std::vector<ParameterGroup> groups;
};

struct LocalOptimizerState {
  std::map<std::string, LeafState> state;  // by leaf name (ShardedModule::named_parameters), in memory order
  std::vector<ParameterGroup> groups;
  std::map<std::string, FlatShardLayout> layouts;  // of all flat shards, as in LocalStateDict
};

// Like the functions for models with the corresponding names. `optimizer` must be built on model.parameters() or some
// of them. With flat leaves (use_orig_params false), all parameters of a leaf have the leaf's numbers.
//
// Loading: names in the reports are FQNs. A parameter's state is loaded or skipped as a whole. A parameter that is in a
// group but has no state has none after loading. Options of a parameter group come from the one group that contained
// all of its parameters; if they were in several groups, "parameter group N" is mismatched. Parameters of one flat leaf
// must have the same numbers (steps); parameters whose numbers differ from the first one's are mismatched. If a flat
// leaf is loaded in part (strict = false), the state of its other parameters is unchanged, or starts at zero if the
// leaf had none.
FullOptimizerState full_optimizer_state(ShardedModule& model, const OptimizerState& optimizer,
                                        const FullParameterOptions& options = {});
LoadReport load_full_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const FullOptimizerState& state,
                                     const FullLoadOptions& options = {});

ShardedOptimizerState sharded_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                              const ShardedStateOptions& options = {});
// Adds the parts of another rank. Differing numbers and differing groups are errors too.
void add_parts(ShardedOptimizerState& to, const ShardedOptimizerState& others);
LoadReport load_sharded_optimizer_state(ShardedModule& model, OptimizerState& optimizer,
                                        const ShardedOptimizerState& state, const LoadOptions& options = {});

// A leaf with another flat shard layout, or of the other kind (use_orig_params), does not fit.
LocalOptimizerState local_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                          const ShardedStateOptions& options = {});
LoadReport load_local_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const LocalOptimizerState& state,
                                      bool strict = true);

// ---------------------------------------------------------------- keys that are numbers

// An optimizer's state with parameters numbered through all groups, as in Python's optimizer.state_dict() of a run
// without sharding.
struct IndexedOptimizerState {
  struct Group {
    std::vector<int64_t> parameters;
    std::map<std::string, double> options;
  };
  std::map<int64_t, LeafState> state;
  std::vector<Group> groups;
};

// Returns the state of an optimizer on whole parameters. The tensors are the optimizer's own.
IndexedOptimizerState indexed_optimizer_state(const OptimizerState& optimizer);
// Loads a state by copying its tensors. A different number of groups, or different parameter numbers in a group, are an
// error.
void load_indexed_optimizer_state(OptimizerState& optimizer, const IndexedOptimizerState& state);

// Convert a state from numbers to FQNs and back. `fqns`: FQNs of the parameters in the order of their numbers, that is,
// as they were given to the optimizer, group by group. `prefix`: the beginning of `fqns` that the names in the
// FullOptimizerState do not have ("module." for names of DistributedDataParallel). Errors name the FQN or number: it is
// missing, occurs twice, or does not begin with `prefix`. Numbers in a group are ascending. Tensors are shared, not
// copied.
FullOptimizerState rekey_optimizer_state(const IndexedOptimizerState& state, const std::vector<std::string>& fqns,
                                         const std::string& prefix = "");
IndexedOptimizerState rekey_optimizer_state(const FullOptimizerState& state, const std::vector<std::string>& fqns,
                                            const std::string& prefix = "");

}  // namespace fsdp
