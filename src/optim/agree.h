// Collective computations of a few values over the ranks of a tree.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "optim/norm_sum.h"

namespace fsdp::engine {
class Engine;
class Unit;
}  // namespace fsdp::engine
namespace fsdp::flat {
class FlatParameter;
}  // namespace fsdp::flat

namespace fsdp::optim {

// Returns whether `mine` is true on any rank of the tree, replicas included: the same answer on all ranks. `purpose`
// names the collective in errors. Collective; blocks.
bool any_rank(engine::Engine& engine, bool mine, const std::string& purpose);

// Returns the values of all ranks of the group, in rank order. All ranks must pass as many. Collective; blocks.
std::vector<std::vector<double>> of_all_ranks(Communicator& group, const std::vector<double>& mine,
                                              const std::string& purpose);

// The ranks that together hold the elements of a FlatParameter; null if this rank holds them all.
struct NormGroups {
  Communicator* shards = nullptr;
  Communicator* parts = nullptr;  // tensor parallelism
  bool operator==(const NormGroups&) const = default;
};
NormGroups norm_groups(const engine::Unit& unit, const flat::FlatParameter& flat);

// Replaces each sum by its total over the ranks of the groups, added in rank order, so that every rank gets the same
// bits. Collective; blocks.
void add_up(const NormGroups& groups, const std::vector<NormSum*>& sums, const std::string& purpose);

}  // namespace fsdp::optim
