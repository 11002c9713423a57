// How often ranks that wait at a store look there.
#pragma once

#include <algorithm>
#include <chrono>

namespace fsdp::comm {

// Ranks that are threads arrive at once.
inline constexpr std::chrono::milliseconds kFirstPoll{1};

// Ranks that wait longer poll less often, so as not to load the store, which serves all of them: together they poll at
// most 10,000 times a second.
inline std::chrono::milliseconds longest_poll(int size) { return std::chrono::milliseconds(std::max(20, size / 10)); }

}  // namespace fsdp::comm
