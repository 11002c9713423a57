// The number by which texts name a rank.
#pragma once

#include "fsdp/mesh.h"

namespace fsdp::comm {

// Returns this rank's number among all ranks, of which those of `mesh` may be a part: the data-parallel ranks of a
// pipeline's stage.
inline int world_rank(const ProcessMesh& mesh) {
  return mesh.world ? mesh.world->world_rank(mesh.world->rank()) : mesh.rank();
}

}  // namespace fsdp::comm
