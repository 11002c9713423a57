// Checks, as a whole, the value that the opcodes of a pickle built.
#pragma once

#include "formats/pickle/pickle_input.h"
#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats {

// Throws if a value contains itself, nests deeper than the limit, or contains more values than the limit, with shared
// values counted at each occurrence. Takes time linear in the tree, even if much of it is shared.
void check_pickle_tree(const PickleValue& root, const PickleInput& input, const PickleLimits& limits);

}  // namespace fsdp::formats
