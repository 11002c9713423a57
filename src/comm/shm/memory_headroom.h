// Determines how much more memory a process may take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace fsdp::comm {

struct MemoryHeadroom {
  int64_t nbytes = 0;
  std::string limit;  // its source: "this machine", "the memory limit of /sys/fs/cgroup/…/memory.max (2048 MiB)"
};

// Returns the minimum of the memory that the system has available and of the memory left below the limits of the
// control groups (versions 1 and 2) that this process is in, including a container's. File caches that can be dropped
// count as available. A limit that cannot be read is ignored. `root`: the root of the file system to look in.
MemoryHeadroom memory_headroom(const std::filesystem::path& root = "/");

// Returns how many bytes may be kept although they are not in use, because getting them again would take time: an
// eighth of the headroom, measured less than half a second ago. Threads: safe.
int64_t spare_memory();

// Throws, with the figures, if `nbytes` more bytes are not available. `what`: what needs them, for the error text.
void check_headroom(int64_t nbytes, const std::string& what, const MemoryHeadroom& headroom);

}  // namespace fsdp::comm
