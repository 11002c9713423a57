#include "binding/process_group.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend_table.h"
#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/meeting/meeting_point_impl.h"
#include "comm/meeting/network.h"
#include "fsdp/backends.h"

namespace fsdp::python {
namespace {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// A communicator and the process group that it was made for.
struct Known {
  c10::weak_intrusive_ptr<c10d::ProcessGroup> process_group;
  c10::intrusive_ptr<Group> group;
};

// Communicators by process group, backend and device. Never destroyed, because at the end of a program the store of the
// process group may be gone before static objects are.
struct KnownGroups {
  std::mutex mutex;
  std::map<std::string, Known> groups;
  std::map<std::string, int64_t> generations;  // communicators made so far, by the same key
};
KnownGroups& known_groups() {
  static auto* known = new KnownGroups;
  return *known;
}

ProcessGroupPtr resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    TORCH_CHECK(false, "fsdp: there is no process group '", name,
                "'; it was destroyed, or belongs to another thread. Shard modules over a group that exists");
  }
}

std::string address_of_this_host(const std::string& master) {
  try {
    return comm::local_address_towards(master.empty() ? comm::host_name() : master);
  } catch (const std::exception&) {
    return "127.0.0.1";  // a host that cannot look up its own name has no other ranks on other hosts
  }
}

std::chrono::milliseconds timeout_of(const ProcessGroupPtr& process_group, c10::Device device) {
  try {
    return process_group->getBackend(device.type())->getBackendOptions()->timeout;
  } catch (const std::exception&) {
    return GlooOptions().timeout;  // a backend that has no options
  }
}

std::shared_ptr<Communicator> connect(const ProcessGroupPtr& process_group, const std::string& backend,
                                      c10::Device device, const GlooOptions& options,
                                      std::shared_ptr<comm::MeetingPoint> point) {
  const int rank = process_group->getRank(), size = process_group->getSize();
  if (backend == "fake") return make_fake_communicator(rank, size);
  if (backend == "auto" && device.is_cpu()) {
    return comm::share_memory(comm::make_host_communicator(point, rank, size, options)).communicator;
  }
  const char* chosen = backend != "auto" ? backend.c_str() : device.is_cuda() ? "nccl" : "gloo";
  const comm::Backend* found = comm::find_backend(chosen);
  TORCH_CHECK(found, "fsdp: unknown backend '", backend,
              "'; accepted: ", c10::Join(", ", comm::backends_for(!device.is_cpu())));
  return comm::make_communicator(*found, {std::move(point), rank, size, options.timeout, options.host}, device);
}

std::shared_ptr<Communicator> make(const ProcessGroupPtr& process_group, const std::string& key, int64_t generation,
                                   const std::string& name, const std::string& backend, c10::Device device,
                                   const std::string& interface, const std::string& master) {
  GlooOptions options;
  options.timeout = timeout_of(process_group, device);
  options.host = interface;
  auto store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("fsdp_cpp/", key, "/", generation), process_group->getStore());
  auto point =
      std::make_shared<comm::MeetingPoint>(store, c10::str("process group '", name, "'"), address_of_this_host(master));
  return connect(process_group, backend, device, options, point);
}

}  // namespace

c10::intrusive_ptr<Group> Group::of(const std::string& name, const std::string& backend, const c10::Device& device,
                                    const std::string& interface, const std::string& master) {
  ProcessGroupPtr process_group = resolve(name);
  KnownGroups& known = known_groups();
  const std::string key = c10::str(name, "/", backend, "/", device.type());
  std::lock_guard<std::mutex> lock(known.mutex);
  if (auto found = known.groups.find(key); found != known.groups.end()) {
    // A group that was destroyed may have left its name to another one.
    if (found->second.process_group.lock() == process_group) return found->second.group;
    known.groups.erase(found);
  }
  const int64_t generation = ++known.generations[key];
  auto group =
      c10::make_intrusive<Group>(make(process_group, key, generation, name, backend, device, interface, master));
  known.groups.insert({key, {c10::weak_intrusive_ptr<c10d::ProcessGroup>(process_group), group}});
  return group;
}

void Group::forget(bool all) {
  KnownGroups& known = known_groups();
  std::lock_guard<std::mutex> lock(known.mutex);
  for (auto it = known.groups.begin(); it != known.groups.end();) {
    it = all || it->second.process_group.expired() ? known.groups.erase(it) : std::next(it);
  }
}

void register_group(torch::Library& library) {
  library.class_<Group>("Group")
      .def_static("of", &Group::of)
      .def_static("forget", &Group::forget)
      .def("rank", &Group::rank)
      .def("size", &Group::size)
      .def("backend", &Group::backend)
      .def("bytes_sent", &Group::bytes_sent);
}

}  // namespace fsdp::python
