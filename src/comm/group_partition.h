// How the ranks of a group agree on the subgroups that they are about to form.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {

// Checks that the lists of members that the ranks of `group` give partition it: each rank in one subgroup, all of whose
// members give the same list. Throws otherwise, with the same words on all ranks. Returns a word that names this
// partition among all that any group makes at the same meeting point.
//
// Ranks exchange hashes of their lists. The lists themselves, of n numbers from n ranks to n ranks, travel only where
// the hashes do not fit together.
std::string agree_on_partition(Communicator& group, const std::vector<int>& members, const CollectiveId& id);

}  // namespace fsdp
