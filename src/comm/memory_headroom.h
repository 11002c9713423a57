// How much memory a process may still take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp {

struct MemoryHeadroom {
  int64_t nbytes = 0;
  std::string limit;  // what sets it: "this machine", "the memory limit of /sys/fs/cgroup/…/memory.max (2048 MiB)"
};

// The least of what the system has available and of what is left below the limits of the control groups (versions 1 and
// 2) that this process is in, a container's among them. File caches that can be dropped count as available. What cannot
// be read limits nothing. `root`: of the file system to look in.
MemoryHeadroom memory_headroom(const std::filesystem::path& root = "/");

// How much memory may be kept although it is not in use, as to get it again would take time: an eighth of the headroom,
// as it was less than half a second ago. Threads: safe.
int64_t spare_memory();

// An error, with the figures, where `nbytes` more are not to be had. `what`: is to have them, for the text.
void check_headroom(int64_t nbytes, const std::string& what, const MemoryHeadroom& headroom);

}  // namespace fsdp
