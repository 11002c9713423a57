// What the ranks of a tree decide together.
#pragma once

#include <string>

namespace fsdp {

class Engine;

// Whether `mine` is true on any rank of the tree, replicas included. The same answer on all ranks. `purpose` names the
// collective in errors. Collective; blocks.
bool any_rank(Engine& engine, bool mine, const std::string& purpose);

}  // namespace fsdp
