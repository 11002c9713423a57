// Options of fully_shard and FullyShardedDataParallel.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>

#include "fsdp/communicator.h"
#include "fsdp/wrap_policy.h"

namespace fsdp {

// What is sharded, and when parameters are gathered (FSDP paper, section 3.2; ZeRO stages in brackets).
enum class ShardingStrategy : uint8_t {
  // Parameters, gradients and optimizer state are sharded; a unit is gathered for forward, released, and gathered
  // again for backward (ZeRO-3).
  kFullShard,
  // As kFullShard, but a unit stays gathered from forward to backward (ZeRO-2 with sharded parameters outside).
  kShardGradOp,
  // Every rank holds everything; flat gradients are all-reduced (plain data parallelism, DDP).
  kNoShard,
};
const char* to_string(ShardingStrategy strategy);

struct Options {
  // -- Options that must be the same for every unit of one tree; a difference is an error that names both units. --

  // The shard group. Required.
  std::shared_ptr<Communicator> communicator;
  // Whether the optimizer sees one leaf for each original parameter (a 1-D view of the part that this rank holds,
  // possibly empty, under the original FQN) or one leaf for each FlatParameter.
  bool use_orig_params = true;
  // Where shards and unsharded buffers live. Unset: the device of the parameters, which must then not be meta.
  std::optional<c10::Device> device;

  // -- Options that may differ from unit to unit. --

  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  // Whether a unit is released after forward and gathered again for backward. Unset: as the strategy says, and false
  // for the root unit. Set to false it turns kFullShard into kShardGradOp for these units; true for a kShardGradOp or
  // kNoShard unit is an error.
  std::optional<bool> reshard_after_forward;
  // dtype in which parameters are gathered and used. Unset: the dtype of the parameters.
  std::optional<c10::ScalarType> param_dtype;
  // dtype in which gradients are captured and reduced. Unset: param_dtype. Shards and their gradients keep the dtype
  // of the original parameters.
  std::optional<c10::ScalarType> reduce_dtype;

  // -- Options of one call. --

  // Which modules below the annotated one become units of their own. Default: none.
  WrapPolicy auto_wrap_policy;
};

}  // namespace fsdp
