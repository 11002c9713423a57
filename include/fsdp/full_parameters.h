// Parameters as a whole and in part: what this rank holds of them, and options for working with whole ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdp {

// The part of one original parameter that this rank holds: elements [begin, end) in memory order, which is row-major
// unless the parameter had another memory format (see strides).
struct ShardSlice {
  std::string fqn;               // original name; for a shared parameter, the first one
  std::vector<int64_t> sizes;    // of the whole parameter
  std::vector<int64_t> strides;  // of the whole parameter
  int64_t begin = 0;
  int64_t end = 0;  // begin == end: this rank holds no element of it
  at::Tensor data;  // 1-D view of the shard, end - begin elements, writable under NoGradGuard
};

// Options of ShardedModule::for_each_full_parameter.
struct FullParameterOptions {
  bool rank0_only = false;      // call `visit` on rank 0 only
  bool offload_to_cpu = false;  // provide copies on the host
};

// Options of ShardedModule::summon_full_params.
struct SummonOptions {
  bool recurse = true;      // false: only the root unit, of the module that was annotated last
  bool writeback = true;    // false: writes of `body` are discarded
  bool rank0_only = false;  // gather for rank 0 only; other ranks get an error if they use one. Excludes writeback
  // An error on devices other than the CPU: there, for_each_full_parameter provides copies on the host.
  bool offload_to_cpu = false;
  // Whether grad() of the module's parameters shows whole gradients, in the dtype of the shards' gradients. With
  // writeback, gradients that are written or assigned there go back to the shards' gradients.
  bool with_grads = false;
};

// A whole parameter, as update_whole_parameters passes it to its owner.
struct WholeParameter {
  std::string fqn;
  at::Tensor value;     // full shape, in the dtype of the shards; `update` writes it in place
  at::Tensor gradient;  // full shape
};

}  // namespace fsdp
