// First use: the one fallback on the sharded key. It sees every operator that has a keyed tensor among its arguments,
// gathers the units concerned, keeps them while the operator runs, and redispatches below the key.
#pragma once

namespace fsdp {}  // namespace fsdp
