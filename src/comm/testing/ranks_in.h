// Who is in a group.
#pragma once

#include <string>

#include "fsdp/communicator.h"

namespace fsdp::testing {

// Returns the numbers that the ranks of a group send, joined. Collective.
inline std::string ranks_in(Communicator& group, int rank) {
  std::string text;
  for (const std::string& part : group.all_gather_bytes(std::to_string(rank), {"groups", 0, Pass::kUser})) {
    text += part + " ";
  }
  return text;
}

}  // namespace fsdp::testing
