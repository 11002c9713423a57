#include "comm/shm/memory_headroom.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

namespace fsdp::comm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kUnlimited = int64_t{1} << 60;  // version 1 writes a number near the largest for "no limit"

// Returns the number after `word` in a file of lines "word number …", or the number that the file begins with if `word`
// is empty.
std::optional<int64_t> number_in(const fs::path& file, const std::string& word) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string first;
    int64_t number = 0;
    if (!word.empty() && !(words >> first && first == word)) continue;
    return words >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* used;
  std::array<const char*, 3> caches;  // in memory.stat
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", {"inactive_file", "active_file", "slab_reclaimable"}};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes",
                               "memory.usage_in_bytes",
                               {"total_inactive_file", "total_active_file", "total_slab_reclaimable"}};

// Lowers the headroom to the memory left below the limit of one group.
void narrow(MemoryHeadroom& headroom, const fs::path& group, const GroupFiles& files) {
  const auto limit = number_in(group / files.limit, "");
  const auto used = number_in(group / files.used, "");
  if (!limit || !used || *limit >= kUnlimited) return;
  int64_t cache = 0;
  for (const char* name : files.caches) cache += number_in(group / "memory.stat", name).value_or(0);
  const int64_t left = std::max<int64_t>(0, *limit - *used + cache);
  if (left >= headroom.nbytes) return;
  headroom = {left, c10::str("the memory limit in ", (group / files.limit).string(), ", ", *limit / kMiB, " MiB")};
}

// Applies the limits of a group and of all groups above it. Groups outside a container are not visible in it, so some
// paths may not exist.
void narrow_upwards(MemoryHeadroom& headroom, const fs::path& mount, const std::string& path, const GroupFiles& files) {
  fs::path group = fs::path(path).relative_path();
  for (; !group.empty(); group = group.parent_path()) narrow(headroom, mount / group, files);
  narrow(headroom, mount, files);
}

bool names_memory(const std::string& controllers) {
  std::istringstream in(controllers);
  for (std::string one; std::getline(in, one, ',');) {
    if (one == "memory") return true;
  }
  return false;
}

}  // namespace

MemoryHeadroom memory_headroom(const fs::path& root) {
  MemoryHeadroom headroom{std::numeric_limits<int64_t>::max(), "this machine"};
  if (const auto kilobytes = number_in(root / "proc/meminfo", "MemAvailable:")) headroom.nbytes = *kilobytes * 1024;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "7:cpu,memory:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      narrow_upwards(headroom, root / "sys/fs/cgroup", path, kVersion2);
    } else if (names_memory(controllers)) {
      narrow_upwards(headroom, root / "sys/fs/cgroup/memory", path, kVersion1);
    }
  }
  return headroom;
}

int64_t spare_memory() {
  using Clock = std::chrono::steady_clock;
  static std::mutex mutex;
  static Clock::time_point looked;
  static int64_t nbytes = 0;
  std::lock_guard lock(mutex);
  if (const auto now = Clock::now(); nbytes == 0 || now - looked > std::chrono::milliseconds(500)) {
    looked = now;
    nbytes = memory_headroom().nbytes / 8;
  }
  return nbytes;
}

void check_headroom(int64_t nbytes, const std::string& what, const MemoryHeadroom& headroom) {
  TORCH_CHECK(nbytes <= headroom.nbytes, what, " needs ", nbytes / kMiB, " MiB (", nbytes, " bytes) of memory, but ",
              headroom.nbytes / kMiB, " MiB are left: ", headroom.limit);
}

}  // namespace fsdp::comm
