// When gradients are reduced.
#pragma once

namespace fsdp {

// What backward passes do with gradients. A backward reads these options when it begins: when its first operator or
// gradient reaches a sharded parameter. Must be the same on all ranks. The first two can be set for single units as
// well: ShardedModule::set_requires_gradient_sync, set_requires_all_reduce.
struct BackwardOptions {
  // false: each rank accumulates gradients unsharded, in reduce_dtype, and communicates nothing (no_sync). Units of
  // SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 stay gathered after such a backward. The next backward with true reduces the
  // sum.
  bool requires_gradient_sync = true;
  // false: gradients are reduce-scattered in the shard group and accumulated there. The next backward with true
  // all-reduces them over the replicas. For units that are not sharded, it has the same effect as
  // requires_gradient_sync.
  bool requires_all_reduce = true;
  // false: the end of backward does not wait for the reductions in flight. The next backward with true waits for them,
  // and so does every function that needs the gradients (grad_norm, clip_grad_norm_, zero_grad, wait_for_gradients).
  bool is_last_backward = true;
};

}  // namespace fsdp
