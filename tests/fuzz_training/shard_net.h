// Makes the sharded model of a case: its options and its units.
#pragma once

#include <memory>

#include "fsdp/fsdp.h"
#include "fuzz_training/case.h"
#include "fuzz_training/modules.h"

namespace fsdp::fuzz {

// Makes the model before it is sharded. With Sharding::sync_states, only rank 0 has the values of the case.
Net make_net(const Case& training, int64_t rank);

std::shared_ptr<ShardedModule> shard_net(const Case& training, NetImpl& net, const std::shared_ptr<Communicator>& world,
                                         const ExecutionOrder& order);

}  // namespace fsdp::fuzz
