#include "frontend/mesh_choice.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>
#include <vector>

#include "comm/checked/checked_communicator.h"

namespace fsdp::frontend {
namespace {

// Meshes of hosts that were created for communicators before.
struct HostMeshes {
  std::mutex mutex;
  std::vector<std::pair<std::weak_ptr<Communicator>, ProcessMesh>> made;
};

// The stored mesh does not contain the world communicator, which would otherwise keep itself alive.
ProcessMesh mesh_of_hosts(const std::shared_ptr<Communicator>& world) {
  static HostMeshes* meshes = new HostMeshes;
  {
    std::lock_guard lock(meshes->mutex);
    std::erase_if(meshes->made, [](const auto& entry) { return entry.first.expired(); });
    for (const auto& [known, mesh] : meshes->made) {
      if (known.lock() == world) return {world, mesh.shard, mesh.replicate};
    }
  }
  ProcessMesh mesh = make_mesh_of_hosts(world);  // without the lock, as other ranks may be threads of this process
  std::lock_guard lock(meshes->mutex);
  meshes->made.push_back({world, {nullptr, mesh.shard, mesh.replicate}});
  return mesh;
}

void merge(std::shared_ptr<Communicator>& into, const std::shared_ptr<Communicator>& other, const char* group,
           const std::string& unit) {
  TORCH_CHECK(!into || !other || into == other, "fsdp: option ", group,
              " must be the same for all units of a tree, but unit '", unit,
              "' was annotated with another one than the module above it");
  into = into ? into : other;
}

void check_same(const DebugOptions& options, const DebugOptions& known) {
  const auto require = [](bool same, const char* option) {
    TORCH_CHECK(same, "fsdp: option debug.", option, " must be the same for all units of a tree, and for all models ",
                "over one communicator");
  };
  require(options.collective_check == known.collective_check, "collective_check");
  require(options.watchdog_warning == known.watchdog_warning, "watchdog_warning");
  require(options.dump_folder == known.dump_folder, "dump_folder");
  require(options.read_only_parameters == known.read_only_parameters, "read_only_parameters");
}

std::shared_ptr<comm::CollectiveMonitor> monitor_for(const ProcessMesh& mesh, const DebugOptions& debug) {
  for (const auto& group : {mesh.world, mesh.shard, mesh.replicate}) {
    auto monitor = group ? comm::CheckedCommunicator::monitor_over(*group) : nullptr;
    if (monitor) {
      check_same(debug, monitor->options());
      return monitor;
    }
  }
  return std::make_shared<comm::CollectiveMonitor>(mesh.world_rank(), debug);
}

}  // namespace

ProcessMesh choose_mesh(const Options& options, const std::string& unit) {
  ProcessMesh mesh = options.mesh.value_or(ProcessMesh{});
  TORCH_CHECK(!options.mesh || mesh.is_2d() || (mesh.world && !mesh.shard && !mesh.replicate), "fsdp: unit '", unit,
              "': Options::mesh must have both a shard group and a replicate group, or a world alone (make_mesh, ",
              "make_mesh_of_hosts, DeviceMesh::data_parallel)");
  TORCH_CHECK(!mesh.world || !options.communicator || mesh.world == options.communicator, "fsdp: unit '", unit,
              "': Options::communicator is not the world of Options::mesh");
  mesh.world = mesh.world ? mesh.world : options.communicator;
  TORCH_CHECK(mesh.world || mesh.is_2d(), "fsdp: unit '", unit, "': Options::communicator is not set");
  if (is_hybrid(options.sharding_strategy) && !mesh.is_2d()) {
    const ProcessMesh hosts = mesh_of_hosts(mesh.world);
    mesh.shard = hosts.shard;
    mesh.replicate = hosts.replicate;
  }
  return mesh;
}

std::shared_ptr<Communicator> watched_group(const std::shared_ptr<Communicator>& group, const ProcessMesh& mesh,
                                            const DebugOptions& debug, const std::string& name) {
  return comm::CheckedCommunicator::over(group, monitor_for(mesh, debug), name);
}

ProcessMesh watched_mesh(const ProcessMesh& mesh, const DebugOptions& debug) {
  const std::shared_ptr<comm::CollectiveMonitor> monitor = monitor_for(mesh, debug);
  const auto over = [&](const std::shared_ptr<Communicator>& group, const char* name) {
    return group ? comm::CheckedCommunicator::over(group, monitor, name) : nullptr;
  };
  return {over(mesh.world, "world"), over(mesh.shard, "shard group"), over(mesh.replicate, "replicate group"),
          mesh.coordinates};
}

std::shared_ptr<Communicator> unwatched(const std::shared_ptr<Communicator>& group) {
  const auto checked = std::dynamic_pointer_cast<comm::CheckedCommunicator>(group);
  return checked ? checked->inner() : group;
}

ProcessMesh merge_meshes(const ProcessMesh& a, const ProcessMesh& b, const std::string& unit) {
  ProcessMesh merged = a;
  merge(merged.world, b.world, "communicator", unit);
  merge(merged.shard, b.shard, "mesh (shard group)", unit);
  merge(merged.replicate, b.replicate, "mesh (replicate group)", unit);
  if (merged.coordinates.empty()) merged.coordinates = b.coordinates;
  return merged;
}

}  // namespace fsdp::frontend
