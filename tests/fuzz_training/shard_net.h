// The sharded model of a case: options, and how units are chosen.
#pragma once

#include <memory>

#include "fsdp/fsdp.h"
#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"

namespace fsdp::fuzz {

// The model before it is sharded. With Sharding::sync_states only rank 0's values are those of the case.
Net make_net(const Case& training, int64_t rank);

std::shared_ptr<ShardedModule> shard_net(const Case& training, NetImpl& net, const std::shared_ptr<Communicator>& world,
                                         const ExecutionOrder& order);

}  // namespace fsdp::fuzz
