#include "comm/checked/stopped_rank.h"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <fstream>

namespace fsdp::comm {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);

// See proc(5): the state follows the name in parentheses.
bool is_stopped(int64_t process) {
  std::ifstream file(c10::str("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return false;
  const char state = text[name_end + 2];
  return state == 'T' || state == 't';
}

}  // namespace

void StoppedRankWarning::look(std::chrono::steady_clock::duration waited,
                              const std::vector<std::shared_ptr<SharedMemory>>& memories, const std::vector<int>& names,
                              const std::function<std::string()>& waits) {
  if (said_ || waited < kPatience) return;
  for (size_t rank = 0; rank < memories.size(); ++rank) {
    const int64_t process = memories[rank]->process();
    if (!is_stopped(process)) continue;
    said_ = true;
    const std::string text = c10::str("fsdp: ", waits(), " for rank ", names[rank], ", which is stopped (process ",
                                      process, "); resume it with: kill -CONT ", process, "\n");
    // Printed directly: autograd holds back LibTorch warnings until backward ends.
    std::fputs(text.c_str(), stderr);
    return;
  }
}

}  // namespace fsdp::comm
