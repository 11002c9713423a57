// Detects ranks of this host that are stopped, by a signal or a debugger, as opposed to lost.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/shared_memory.h"

namespace fsdp::comm {

// One wait of this rank for others. The watchdog (DebugOptions::watchdog_warning) handles ranks that are only slow, and
// asks them what they do.
class StoppedRankWarning {
 public:
  // Must be called repeatedly while this rank waits. After a second, prints once on stderr which of the ranks that made
  // `memories` is stopped, and how it can be continued. `names`: rank numbers for texts; `waits`: "rank 0 waits for …".
  void look(std::chrono::steady_clock::duration waited, const std::vector<std::shared_ptr<SharedMemory>>& memories,
            const std::vector<int>& names, const std::function<std::string()>& waits);

 private:
  bool said_ = false;
};

}  // namespace fsdp::comm
