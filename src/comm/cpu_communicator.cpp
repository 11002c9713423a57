#include "comm/cpu_communicator.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <string>
#include <utility>

#include "comm/gloo/gloo_communicator.h"
#include "comm/hosts/hosts_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/shm/shm_communicator.h"
#include "comm/staged/staged_communicator.h"
#include "fsdp/backends.h"

namespace fsdp::comm {
namespace {

// The kind of communicator that make_group_over makes, and the reason.
struct Choice {
  enum class Way { kGloo, kMemory, kMemoryAndGloo };
  Way way = Way::kGloo;
  std::string reason;
};

Choice choose(const FoundHosts& found) {
  using Way = Choice::Way;
  const std::optional<HostGrid> grid = found.ranks ? grid_of(found.ranks->hosts) : std::nullopt;
  if (!grid || grid->ranks_per_host == 1) return {Way::kGloo, found.apart};
  if (grid->hosts == 1) {
    return {Way::kMemory, c10::str("all ", grid->ranks_per_host, " ranks share the memory of this host")};
  }
  return {Way::kMemoryAndGloo, c10::str(grid->hosts, " hosts of ", grid->ranks_per_host,
                                        " ranks each: memory within a host, Gloo among hosts")};
}

std::shared_ptr<MeetingPoint> point_of(const RankEnvironment& environment, const GlooOptions& options) {
  return environment.world_size == 1 ? nullptr : make_tcp_meeting_point(environment, options.timeout);
}

}  // namespace

std::shared_ptr<Communicator> make_group_over(std::shared_ptr<Communicator> gloo, const RankHosts& ranks) {
  const std::optional<HostGrid> grid = grid_of(ranks.hosts);
  if (!grid || grid->ranks_per_host == 1) return gloo;
  if (grid->hosts == 1) return make_shm_group(std::move(gloo), ranks);
  return make_hosts_group(std::move(gloo), ranks, *grid);
}

ChosenCommunicator share_memory(std::shared_ptr<Communicator> gloo, const HostProbe& probe) {
  if (gloo->size() == 1) return {std::move(gloo), "there is one rank"};
  const FoundHosts found = find_hosts(*gloo, probe);
  std::string reason = choose(found).reason;
  return {found.ranks ? make_group_over(std::move(gloo), *found.ranks) : std::move(gloo), std::move(reason)};
}

std::shared_ptr<Communicator> make_shm_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                    const GlooOptions& options) {
  auto gloo = make_host_communicator(point, rank, size, options);
  if (size == 1) return make_staged_communicator(std::move(gloo));
  const FoundHosts found = find_hosts(*gloo, {});
  const Choice choice = choose(found);
  TORCH_CHECK(choice.way != Choice::Way::kGloo, "no shared memory: ", choice.reason, ". Use Gloo");
  TORCH_CHECK(choice.way == Choice::Way::kMemory, "the ranks do not all share memory: ", found.apart,
              ". Use `auto` (make_cpu_communicator) or Gloo; `auto` chooses: ", choice.reason);
  return make_staged_communicator(make_group_over(std::move(gloo), *found.ranks));
}

}  // namespace fsdp::comm

namespace fsdp {

std::shared_ptr<Communicator> make_shm_communicator(const RankEnvironment& environment, const GlooOptions& options) {
  return comm::make_shm_communicator(comm::point_of(environment, options), environment.rank, environment.world_size,
                                     options);
}

ChosenCommunicator make_cpu_communicator(const RankEnvironment& environment, const GlooOptions& options) {
  ChosenCommunicator chosen = comm::share_memory(comm::make_host_communicator(
      comm::point_of(environment, options), environment.rank, environment.world_size, options));
  return {comm::make_staged_communicator(std::move(chosen.communicator)), std::move(chosen.reason)};
}

}  // namespace fsdp
