// Ranks of this host that are stopped, by a signal or a debugger: told apart from those that are lost.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shared_memory.h"

namespace fsdp {

// One wait of this rank for others. One that is only slow is the watchdog's (DebugOptions::watchdog_warning), which
// asks it what it does.
class StoppedRankWarning {
 public:
  // Called again and again while this rank waits: behind a second, says once on stderr which of the ranks that made
  // `memories` is stopped, and how it goes on. `names`: of the ranks, for texts; `waits`: "rank 0 waits for …".
  void look(std::chrono::steady_clock::duration waited, const std::vector<std::shared_ptr<SharedMemory>>& memories,
            const std::vector<int>& names, const std::function<std::string()>& waits);

 private:
  bool said_ = false;
};

}  // namespace fsdp
