// What the opcodes of a pickle built, checked as a whole.
#pragma once

#include "checkpoint/pickle_input.h"
#include "checkpoint/pickle_reader.h"

namespace fsdp::checkpoint {

// Errors when a value contains itself, nests deeper than the limit, or holds more values than the limit with
// shared ones counted wherever they stand. Takes time linear in the tree, however much of it is shared.
void check_pickle_tree(const PickleValue& root, const PickleInput& input, const PickleLimits& limits);

}  // namespace fsdp::checkpoint
