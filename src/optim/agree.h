// What the ranks of a tree find out together.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "optim/norm_sum.h"

namespace fsdp {

class Engine;

// Whether `mine` is true on any rank of the tree, replicas included. The same answer on all ranks. `purpose` names the
// collective in errors. Collective; blocks.
bool any_rank(Engine& engine, bool mine, const std::string& purpose);

// Replaces each sum by that over the ranks of the group, added in rank order: the same bits on every rank. A null
// group: this rank holds everything already. Collective; blocks.
void add_up(Communicator* group, const std::vector<NormSum*>& sums, const std::string& purpose);

}  // namespace fsdp
