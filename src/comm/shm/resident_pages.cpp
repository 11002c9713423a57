#include "comm/shm/resident_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace fsdp::comm {

int64_t resident_nbytes(const char* begin, int64_t nbytes) {
  constexpr int64_t kAtATime = int64_t{1} << 16;
  static const int64_t page = sysconf(_SC_PAGESIZE);
  const auto address = reinterpret_cast<int64_t>(begin);
  const int64_t first = address / page, end = (address + nbytes + page - 1) / page;
  std::vector<unsigned char> there(kAtATime);
  int64_t pages = 0;
  for (int64_t next = first; next < end; next += kAtATime) {
    const int64_t some = std::min(kAtATime, end - next);
    if (mincore(reinterpret_cast<void*>(next * page), static_cast<size_t>(some * page), there.data()) != 0) return 0;
    pages += std::count_if(there.begin(), there.begin() + some, [](unsigned char one) { return (one & 1) != 0; });
  }
  return pages * page;
}

}  // namespace fsdp::comm
