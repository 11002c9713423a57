// Options of an engine and of its units, resolved from the user's Options.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "flat/shard_memory.h"
#include "fsdp/backward_prefetch.h"
#include "fsdp/debug_options.h"
#include "fsdp/mesh.h"
#include "fsdp/options.h"
#include "tensor_parallel/exchange.h"

namespace fsdp::engine {

// See Options.
struct OverlapOptions {
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool forward_prefetch = true;
  size_t max_gathered_units = 2;  // or schedule::kNoLimit
  bool one_communicator = false;
  bool high_priority_streams = true;
};

// Options that all units of a tree share.
struct EngineOptions {
  ProcessMesh mesh;
  bool use_orig_params = true;
  ShardCut shard_cut = ShardCut::kFlat;
  bool keep_memory = false;
  flat::ShardMemory memory{c10::Device(c10::kCPU)};  // where shards lie, and where parameters are used
  OverlapOptions overlap{};
  CollectiveCheck collective_check{};
  bool read_only_parameters = false;  // DebugOptions
  // Whether other modules lie below the one that fully_shard was called on, so that there could be more units than one.
  bool could_have_units_below = false;
  // Tensor parallelism: null without it.
  std::shared_ptr<tensor_parallel::Exchange> exchange = {};
  // Distinguishes several models over one communicator.
  int64_t model = 1;
};

// Options of one unit.
struct UnitOptions {
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  std::optional<ReshardAfterForward> reshard_after_forward;
  std::optional<at::ScalarType> param_dtype;
  std::optional<at::ScalarType> reduce_dtype;
  bool keep_low_precision_grads = false;
  bool cast_forward_inputs = true;
  bool operator==(const UnitOptions&) const = default;
};

}  // namespace fsdp::engine
