// Which groups a fully_shard call works with.
#pragma once

#include <memory>
#include <string>

#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp {

// What Options::communicator and Options::mesh say together. Hybrid strategies without a mesh get one shard group for
// each host, made (a collective act) once for each communicator. `unit` names the unit in errors. Threads: safe.
ProcessMesh choose_mesh(const Options& options, const std::string& unit);

// The groups of a mesh with a record, checks and a watchdog as `debug` says (checked_communicator.h). Groups that have
// them already keep them; `debug` must then say the same. Collective where checks need connections of their own.
ProcessMesh watched_mesh(const ProcessMesh& mesh, const DebugOptions& debug);
// The user's communicator in a group of a watched mesh.
std::shared_ptr<Communicator> unwatched(const std::shared_ptr<Communicator>& group);

// The mesh of a tree of which parts were annotated with `a` and `b`; throws, naming `unit`, when they contradict one
// another.
ProcessMesh merge_meshes(const ProcessMesh& a, const ProcessMesh& b, const std::string& unit);

}  // namespace fsdp
