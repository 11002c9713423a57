// Which groups a fully_shard call works with.
#pragma once

#include <string>

#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp {

// What Options::communicator and Options::mesh say together. Hybrid strategies without a mesh get one shard group for
// each host, made (a collective act) once for each communicator. `unit` names the unit in errors. Threads: safe.
ProcessMesh choose_mesh(const Options& options, const std::string& unit);

// The mesh of a tree of which parts were annotated with `a` and `b`; throws, naming `unit`, when they contradict one
// another.
ProcessMesh merge_meshes(const ProcessMesh& a, const ProcessMesh& b, const std::string& unit);

}  // namespace fsdp
