#include "comm/hosts/rank_hosts.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "comm/meeting/network.h"

namespace fsdp::comm {
namespace {

// Returns the address space for one rank's heap: the size of the machine's memory.
int64_t heap_nbytes() { return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

// For each rank, the ranks whose memory it can reach, in order: the ranks of its host.
using Rows = std::vector<std::vector<int>>;

// Returns none if two ranks share a host with a third one, but not with each other.
std::optional<std::vector<int>> hosts_of(const Rows& rows) {
  std::vector<int> hosts;
  for (const std::vector<int>& row : rows) {
    const auto rank = static_cast<int>(hosts.size());
    if (!std::binary_search(row.begin(), row.end(), rank)) return std::nullopt;
    if (rows[static_cast<size_t>(row.front())] != row) return std::nullopt;
    hosts.push_back(row.front());
  }
  return hosts;
}

// Returns the first rank that is not in the row.
size_t first_without(const std::vector<int>& row) {
  size_t rank = 0;
  while (rank < row.size() && row[rank] == static_cast<int>(rank)) ++rank;
  return rank;
}

std::string first_apart(const Rows& rows, const std::vector<std::string>& names) {
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (rows[rank].size() == rows.size()) continue;
    const size_t other = first_without(rows[rank]);
    return c10::str("rank ", rank, " on host '", names[rank], "' cannot reach the memory of rank ", other,
                    names[rank] == names[other]
                        ? ", whose host has the same name (a container of its own, or another user)"
                        : " on host '" + names[other] + "'");
  }
  return {};
}

// Runs a part that takes memory. Returns its error; empty: none.
template <typename Part>
std::string failure_of(const Part& part) {
  try {
    part();
    return {};
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

// The result of one rank's search, for the other ranks.
struct Finding {
  std::vector<int> row;
  std::string failure;  // empty: the rank can share memory
};

std::string text_of(const Finding& finding) { return c10::Join(" ", finding.row) + "\n" + finding.failure; }
Finding finding_of(const std::string& text) {
  const size_t end = text.find('\n');
  std::istringstream numbers(text.substr(0, end));
  return {std::vector<int>(std::istream_iterator<int>(numbers), {}), text.substr(end + 1)};
}

// Describes the first rank that cannot share memory at all, and why; empty: none.
std::string first_failure(const std::vector<Finding>& findings) {
  for (size_t rank = 0; rank < findings.size(); ++rank) {
    if (findings[rank].failure.empty()) continue;
    return c10::str("rank ", rank, " cannot share memory (", findings[rank].failure, ")");
  }
  return {};
}

}  // namespace

RankHosts RankHosts::of(const std::vector<int>& members) const {
  RankHosts part{own, {}, {}, spare};
  for (int member : members) {
    part.of_ranks.push_back(of_ranks[static_cast<size_t>(member)]);
    part.hosts.push_back(hosts[static_cast<size_t>(member)]);
  }
  return part;
}

std::optional<HostGrid> grid_of(const std::vector<int>& hosts) {
  const auto begin = hosts.begin();
  const auto per_host = std::find_if(begin, hosts.end(), [&](int host) { return host != hosts.front(); }) - begin;
  const auto ranks = static_cast<std::ptrdiff_t>(hosts.size());
  if (ranks % per_host != 0) return std::nullopt;
  for (std::ptrdiff_t rank = 0; rank < ranks; ++rank) {
    const bool first = rank % per_host == 0;
    if (!first && begin[rank] != begin[rank - 1]) return std::nullopt;
    // The ranks of one host must be contiguous.
    if (first && std::find(begin, begin + rank, begin[rank]) != begin + rank) return std::nullopt;
  }
  return HostGrid{static_cast<int>(ranks / per_host), static_cast<int>(per_host)};
}

FoundHosts find_hosts(Communicator& group, const HostProbe& probe) {
  const CollectiveId id{"hosts", 0, Pass::kSetup};
  RankHosts ranks{nullptr, {}, {}, probe.spare};
  std::string ticket;
  Finding own;
  own.failure = failure_of([&] {
    const auto memory = SharedMemory::create(probe.heap_nbytes > 0 ? probe.heap_nbytes : heap_nbytes());
    ranks.own = std::make_shared<SharedHeap>(memory);
    ticket = memory->ticket();
  });
  const std::string name = probe.name.empty() ? host_name() : probe.name;
  const std::vector<std::string> names = group.all_gather_bytes(name, id);
  const std::vector<std::string> tickets = group.all_gather_bytes(ticket, id);
  for (size_t rank = 0; rank < names.size(); ++rank) {
    ranks.of_ranks.push_back(nullptr);
    const bool may_open = names[rank] == name && !tickets[rank].empty() && own.failure.empty();
    if (may_open) own.failure = failure_of([&] { ranks.of_ranks.back() = probe.open(tickets[rank]); });
    if (ranks.of_ranks.back()) own.row.push_back(static_cast<int>(rank));
  }
  std::vector<Finding> findings;
  // This gather also ensures that all ranks have opened what they can.
  for (const std::string& text : group.all_gather_bytes(text_of(own), id)) findings.push_back(finding_of(text));
  if (std::string failure = first_failure(findings); !failure.empty()) return {std::nullopt, std::move(failure)};
  Rows rows;
  for (Finding& finding : findings) rows.push_back(std::move(finding.row));
  FoundHosts found{std::nullopt, first_apart(rows, names)};
  if (std::optional<std::vector<int>> hosts = hosts_of(rows)) {
    ranks.hosts = std::move(*hosts);
    found.ranks = std::move(ranks);
  }
  return found;
}

}  // namespace fsdp::comm
