// Collective computations of a few values over the ranks of a tree.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "optim/norm_sum.h"

namespace fsdp::engine {
class Engine;
}  // namespace fsdp::engine

namespace fsdp::optim {

// Returns whether `mine` is true on any rank of the tree, replicas included: the same answer on all ranks. `purpose`
// names the collective in errors. Collective; blocks.
bool any_rank(engine::Engine& engine, bool mine, const std::string& purpose);

// Replaces each sum by its total over the ranks of the group, added in rank order, so that every rank gets the same
// bits. A null group means that this rank already holds everything. Collective; blocks.
void add_up(Communicator* group, const std::vector<NormSum*>& sums, const std::string& purpose);

}  // namespace fsdp::optim
