// State dicts: the values of a sharded model and of its optimizer by name, and back.
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
// What is in them: parameters, in the dtype of the shards, and buffers and parameters that are not sharded
// (Options::ignored_parameters), as they are. Keys are the FQNs of `module`, which is the one that `model` was made of;
// a shared parameter is there under each of its names, and may be loaded from any of them; values under several of its
// names must be the same to the bit. An optimizer's state has it under its first name, and is loaded as its values are.
//
// Loading copies. All of it is collective: the ranks agree on what fits, with the optimizer too (OptimizerState),
// before any of them changes anything, so that an error, which all ranks get, leaves everything as it was. Units are
// released before, gathers see the new values afterwards; a backward whose forward came before is an error, as after a
// step. Threads: as training.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "fsdp/load_report.h"
#include "fsdp/optimizer_state.h"

namespace fsdp {

// ---------------------------------------------------------------- full

struct FullLoadOptions {
  bool strict = true;  // as in LoadOptions
  Rename rename = {};
  // true: rank 0's is loaded, that of the other ranks is not looked at and may be empty. It is sent one tensor after
  // the other. false: each rank takes what it holds from its own, which must be the same on all ranks.
  bool from_rank0 = false;
};

using FullStateDict = std::map<std::string, at::Tensor>;

// Copies, in the parameters' memory formats, on the device where parameters are used. With rank0_only the other ranks
// get nothing. No rank holds more than one unit beside its shards and the result. Collective.
FullStateDict full_state_dict(ShardedModule& model, const torch::nn::Module& module,
                              const FullParameterOptions& options = {});

// The same, one after the other, without a result: `visit` is called with each name and its tensor, which is valid
// during the call only. Names of a shared parameter come one after the other. Collective: `visit` may do nothing on
// some ranks, but must not throw on some only.
void for_each_full_tensor(ShardedModule& model, const torch::nn::Module& module,
                          const std::function<void(const std::string& name, const at::Tensor& full)>& visit,
                          const FullParameterOptions& options = {});

// Tensors may be on any device.
LoadReport load_full_state_dict(ShardedModule& model, torch::nn::Module& module, const FullStateDict& values,
                                const FullLoadOptions& options = {});

// ---------------------------------------------------------------- sharded

struct TensorPart {
  int64_t begin = 0;  // elements [begin, end), in the order in which the tensor lies in memory
  int64_t end = 0;
  at::Tensor values;  // 1-D
};

struct ShardedTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;     // of the whole
  std::vector<int64_t> strides;   // likewise, where it does not lie row-major; else empty
  std::vector<TensorPart> parts;  // in any order; where they overlap they must agree; none: the rank holds nothing
};

using ShardedStateDict = std::map<std::string, ShardedTensor>;

struct ShardedStateOptions {
  bool offload_to_cpu = false;  // copies on the host
};

// The parts are views of the shards, and change with them, unless they are offloaded. What is not sharded is there
// whole on each rank. Every rank has all names. Local.
ShardedStateDict sharded_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                    const ShardedStateOptions& options = {});

// Adds what another rank holds. A tensor of another dtype, shape or memory format is an error that names it. Local.
void add_parts(ShardedStateDict& to, const ShardedStateDict& others);

// The parts that a rank is given must cover what it holds, and all of the tensor where that lies otherwise in memory
// here: give it those of several ranks (add_parts) where the model is sharded otherwise.
LoadReport load_sharded_state_dict(ShardedModule& model, torch::nn::Module& module, const ShardedStateDict& values,
                                   const LoadOptions& options = {});

// ---------------------------------------------------------------- local

// What lies in one flat shard of one rank.
struct FlatShardLayout {
  std::vector<std::string> fqns;  // of the parameters, in the order in which they lie; the first name of each
  std::vector<int64_t> numels;    // of the whole parameters
  int64_t rank = 0;               // which of the `factor` shards
  int64_t factor = 1;
  int64_t shard_numel = 0;  // padding included
  int64_t padding = 0;      // elements at the end of the last shards, over all ranks
  bool operator==(const FlatShardLayout&) const = default;
};

struct LocalShard {
  FlatShardLayout layout;
  at::Tensor shard;  // 1-D
};

// By "<unit>.flat_param" ("<unit>.flat_param_2", …) whatever use_orig_params.
struct LocalStateDict {
  std::map<std::string, LocalShard> shards;
  std::map<std::string, at::Tensor> unsharded;  // buffers and parameters that are not sharded
};

// Views, as sharded_state_dict's. Local.
LocalStateDict local_state_dict(const ShardedModule& model, const torch::nn::Module& module,
                                const ShardedStateOptions& options = {});

// A shard of another layout is mismatched, and the report says in what. `strict` as in LoadOptions.
LoadReport load_local_state_dict(ShardedModule& model, torch::nn::Module& module, const LocalStateDict& values,
                                 bool strict = true);

// ---------------------------------------------------------------- optimizer

// Names of parameters, or of leaves in a local one.
struct ParameterGroup {
  std::vector<std::string> parameters;
  std::map<std::string, double> options;  // as OptimizerState::options
};

// Parameters that have had no gradient are in `groups` only.
struct FullOptimizerState {
  std::map<std::string, LeafState> state;  // by FQN; tensors have the parameter's shape
  std::vector<ParameterGroup> groups;
};

struct ShardedLeafState {
  std::map<std::string, ShardedTensor> tensors;
  std::map<std::string, double> scalars;
};
struct ShardedOptimizerState {
  std::map<std::string, ShardedLeafState> state;  // by FQN, of the parameters of which this rank holds elements
  std::vector<ParameterGroup> groups;
};

struct LocalOptimizerState {
  std::map<std::string, LeafState> state;  // by name of the leaf (ShardedModule::named_parameters), as it lies
  std::vector<ParameterGroup> groups;
  std::map<std::string, FlatShardLayout> layouts;  // of all flat shards, as in LocalStateDict
};

// As the functions of the same names for models. `optimizer` is one on model.parameters(), or some of them. With flat
// leaves (use_orig_params false) all parameters of a leaf have its numbers.
//
// Loading: names in the reports are FQNs; a parameter's state is loaded whole or skipped whole. A parameter that is in
// a group but has no state has none afterwards. Options of a parameter group come from the one group that all its
// parameters were in; where they were in several, "parameter group N" is mismatched. Parameters of one flat leaf must
// have the same numbers (steps), else those that differ from the first are mismatched; in a flat leaf that is loaded in
// part (strict = false) the state of the others stays, or begins at zero where the leaf had none.
FullOptimizerState full_optimizer_state(ShardedModule& model, const OptimizerState& optimizer,
                                        const FullParameterOptions& options = {});
LoadReport load_full_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const FullOptimizerState& state,
                                     const FullLoadOptions& options = {});

ShardedOptimizerState sharded_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                              const ShardedStateOptions& options = {});
// Numbers that differ, and groups that differ, are errors too.
void add_parts(ShardedOptimizerState& to, const ShardedOptimizerState& others);
LoadReport load_sharded_optimizer_state(ShardedModule& model, OptimizerState& optimizer,
                                        const ShardedOptimizerState& state, const LoadOptions& options = {});

// A leaf of another flat shard layout, or the other kind of leaf (use_orig_params), does not fit.
LocalOptimizerState local_optimizer_state(const ShardedModule& model, const OptimizerState& optimizer,
                                          const ShardedStateOptions& options = {});
LoadReport load_local_optimizer_state(ShardedModule& model, OptimizerState& optimizer, const LocalOptimizerState& state,
                                      bool strict = true);

// ---------------------------------------------------------------- keys that are numbers

// An optimizer's state with parameters numbered through all groups, as in Python's optimizer.state_dict(): that of a
// run without sharding.
struct IndexedOptimizerState {
  struct Group {
    std::vector<int64_t> parameters;
    std::map<std::string, double> options;
  };
  std::map<int64_t, LeafState> state;
  std::vector<Group> groups;
};

// Of an optimizer on whole parameters. The tensors are the optimizer's own.
IndexedOptimizerState indexed_optimizer_state(const OptimizerState& optimizer);
// Copies. Other numbers of groups or of their parameters are an error.
void load_indexed_optimizer_state(OptimizerState& optimizer, const IndexedOptimizerState& state);

// From numbers to FQNs and back. `fqns`: of the parameters, in the order of their numbers, that is, as they were given
// to the optimizer, group by group. `prefix`: what the FQNs begin with and the state is not to have ("module." for
// names of DistributedDataParallel), or, on the way back, what `fqns` have and the state has not. Errors name the FQN
// or number: one that is not there, twice there, or does not begin with `prefix`. Numbers in a group are ascending.
// Tensors are shared, not copied.
FullOptimizerState rekey_optimizer_state(const IndexedOptimizerState& state, const std::vector<std::string>& fqns,
                                         const std::string& prefix = "");
IndexedOptimizerState rekey_optimizer_state(const FullOptimizerState& state, const std::vector<std::string>& fqns,
                                            const std::string& prefix = "");

}  // namespace fsdp
