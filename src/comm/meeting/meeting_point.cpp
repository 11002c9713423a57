#include "comm/meeting/meeting_point.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/interruption.h"
#include "comm/error_text.h"
#include "comm/failure.h"
#include "comm/meeting/group_store.h"
#include "comm/meeting/meeting_point_impl.h"
#include "comm/meeting/network.h"
#include "comm/meeting/polling.h"
#include "comm/meeting/store_barrier.h"
#include "fsdp/rank_environment.h"

namespace fsdp::comm {

using namespace std::chrono_literals;

namespace {

// The process of rank 0 usually hosts the store: it gives up last, so that the others can still ask which ranks are
// missing.
constexpr auto kGrace = 500ms;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Sets `key` to `value` if it has no value; returns its value afterwards.
std::string claim(c10d::Store& store, const std::string& key, const std::string& value) {
  const auto now = store.compareSet(key, {}, bytes_of(value));
  return {now.begin(), now.end()};
}

// Returns a name that identifies this process among all that may come to a meeting point.
const std::string& process_name() {
  static const std::string name = c10::str("process ", getpid(), " on ", host_name(), " #", std::random_device{}());
  return name;
}

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

// Whether the store gets reachable within the timeout.
bool is_reached(const RankEnvironment& environment, const std::string& name, std::chrono::milliseconds timeout) {
  switch (await_listener(environment.master_address, environment.master_port, timeout)) {
    case Awaited::kInterrupted:
      Failure{Failure::Kind::kInterrupted,
              c10::str("rank ", environment.rank, " of ", environment.world_size,
                       " was interrupted while it waited for the store of rank 0 at ", name)}
          .raise();
    case Awaited::kListening:
      return true;
    case Awaited::kTimedOut:
      break;
  }
  return false;
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const RankEnvironment& environment, const std::string& name,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && base::env_string("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.waitWorkers = false;
  options.multiTenant = true;
  options.timeout = timeout;
  TORCH_CHECK_WITH(DistStoreError, options.isServer || is_reached(environment, name, timeout), "rank ",
                   environment.rank, " cannot reach the store of rank 0 at ", name, " within ", seconds(timeout),
                   " s; check MASTER_ADDR and MASTER_PORT, and that rank 0 is running");
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistStoreError, false, "rank ", environment.rank,
                     options.isServer ? " cannot open" : " cannot use", " the store at ", name,
                     options.isServer ? "; is the port in use? Choose another MASTER_PORT" : "", " (",
                     first_line(error), ")");
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> MeetingPoint::join(int rank, int size, std::chrono::milliseconds timeout) {
  claim_rank(rank, size);
  agree_on_size(rank, size);
  const auto visit = store_->add(c10::str("rank/", rank, "/visits"), 1);
  auto group = c10::make_intrusive<c10d::PrefixStore>(c10::str("group/", visit), store_);
  group->setTimeout(timeout);
  wait_for_others(*group, rank, size, timeout);
  return group;
}

void MeetingPoint::claim_rank(int rank, int size) {
  const auto owner = claim(*store_, c10::str("rank/", rank, "/owner"), process_name());
  TORCH_CHECK(owner == process_name(), "two processes claim rank ", rank, " of ", size, " at ", name_, ": ", owner,
              " and ", process_name(), "; give each process its own RANK, or each job its own MASTER_PORT");
}

void MeetingPoint::agree_on_size(int rank, int size) {
  const auto first = claim(*store_, "size", c10::str(size, " (rank ", rank, ")"));
  TORCH_CHECK(first.rfind(c10::str(size, " "), 0) == 0, "the ranks at ", name_,
              " disagree about the number of ranks: ", first, " and ", size, " (rank ", rank,
              "); check WORLD_SIZE on every host");
}

void MeetingPoint::wait_for_others(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  StoreBarrier barrier(store, size);
  std::vector<int> missing;
  std::optional<std::string> abandoned;
  const auto deadline = std::chrono::steady_clock::now() + timeout + (rank == 0 ? kGrace : 0ms);
  try {
    barrier.arrive(rank);
    for (auto pause = kFirstPoll; !barrier.is_complete(); pause = std::min(2 * pause, longest_poll(size))) {
      if (std::chrono::steady_clock::now() >= deadline) {
        missing = barrier.missing();
        break;
      }
      if (!base::Interruption::sleep_for(pause)) abandon(barrier, rank, size);
    }
    if (missing.empty()) abandoned = barrier.why_abandoned();
  } catch (const WaitInterrupted&) {
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistStoreError, false, "rank ", rank, " waited at ", name_, " for the other ranks of ", size,
                     " when the store was lost; did rank 0 end? (", first_line(error), ")");
  }
  TORCH_CHECK_WITH(DistStoreError, missing.empty(), "rank ", rank, " waited up to ", seconds(timeout), " s at ", name_,
                   " for rank(s) ", c10::Join(", ", missing), " of ", size, " ranks, which did not arrive");
  if (!abandoned) return;
  Failure{Failure::Kind::kRankLost,
          c10::str("rank ", rank, " of ", size, " cannot meet the others at ", name_, ": ", *abandoned)}
      .raise();
}

void MeetingPoint::abandon(StoreBarrier& barrier, int rank, int size) {
  const Failure failure{
      Failure::Kind::kInterrupted,
      c10::str("rank ", rank, " of ", size, " was interrupted while it waited at ", name_, " for the other ranks")};
  barrier.abandon(failure.reason);
  if (rank == 0) let_others_read(size);
  failure.raise();
}

std::shared_ptr<MeetingPoint> make_in_memory_meeting_point() {
  return std::make_shared<MeetingPoint>(c10::make_intrusive<c10d::HashStore>(), "memory", "127.0.0.1");
}

std::shared_ptr<MeetingPoint> make_tcp_meeting_point(const RankEnvironment& environment,
                                                     std::chrono::milliseconds timeout) {
  const auto name = c10::str(environment.master_address, ":", environment.master_port);
  auto store = open_tcp_store(environment, name, timeout);
  // The store of one agent serves all jobs and restarts that it runs.
  const auto prefix = c10::str("fsdp/", base::env_string("TORCHELASTIC_RUN_ID").value_or("none"), "/",
                               base::env_string("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  return std::make_shared<MeetingPoint>(c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store)), name,
                                        local_address_towards(environment.master_address));
}

std::shared_ptr<MeetingPoint> inner_meeting_point(const MeetingPoint& point, const std::string& name) {
  return std::make_shared<MeetingPoint>(c10::make_intrusive<c10d::PrefixStore>(name, point.store()), point.name(),
                                        point.local_address());
}

}  // namespace fsdp::comm
