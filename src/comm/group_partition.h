// Agreement of the ranks of a group on the subgroups that they are about to form.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::comm {

// Checks that the member lists of the ranks of `group` partition it: each rank is in one subgroup, and all members of a
// subgroup pass the same list. Otherwise throws the same error on all ranks. Returns a word that identifies this
// partition among all partitions that any group makes at the same meeting point.
//
// Ranks exchange hashes of their lists. They exchange the lists themselves (n numbers from n ranks to n ranks) only if
// the hashes do not match.
std::string agree_on_partition(Communicator& group, const std::vector<int>& members, const CollectiveId& id);

}  // namespace fsdp::comm
