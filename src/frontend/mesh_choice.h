// Chooses the groups that a fully_shard call works with.
#pragma once

#include <memory>
#include <string>

#include "fsdp/mesh.h"
#include "fsdp/options.h"

namespace fsdp::frontend {

// Returns the mesh that Options::communicator and Options::mesh specify together. Hybrid strategies without a mesh get
// one shard group for each host, created (collectively) once for each communicator. `unit` names the unit in errors.
// Thread-safe.
ProcessMesh choose_mesh(const Options& options, const std::string& unit);

// Returns the mesh with a record, checks and a watchdog added to its groups according to `debug`
// (comm/checked/checked_communicator.h). Groups that already have them keep them; `debug` must then be the same.
// Collective if checks need connections of their own.
ProcessMesh watched_mesh(const ProcessMesh& mesh, const DebugOptions& debug);
// Does the same for a group that is not of the mesh, with the record of the mesh.
std::shared_ptr<Communicator> watched_group(const std::shared_ptr<Communicator>& group, const ProcessMesh& mesh,
                                            const DebugOptions& debug, const std::string& name);
// Returns the user's communicator inside a group of a watched mesh.
std::shared_ptr<Communicator> unwatched(const std::shared_ptr<Communicator>& group);

// Returns the mesh of a tree whose parts were annotated with `a` and `b`. Throws, naming `unit`, if they contradict
// each other.
ProcessMesh merge_meshes(const ProcessMesh& a, const ProcessMesh& b, const std::string& unit);

}  // namespace fsdp::frontend
