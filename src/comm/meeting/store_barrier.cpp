#include "comm/meeting/store_barrier.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>

namespace fsdp::comm {
namespace {

constexpr int kBlock = 64;

// The key that ends the barrier. Its value is kAllArrived, or the reason why a rank has abandoned it.
const char* const kComplete = "complete";
const char* const kAllArrived = "y";
std::string presence_of(int rank) { return c10::str("present/", rank); }
std::string counter_of(int level, int block) { return c10::str("arrived/", level, "/", block); }

// For a level of `count` members; its last block may have fewer members than the others.
int members_of(int block, int count) { return std::min(kBlock, count - block * kBlock); }
int blocks_of(int count) { return (count + kBlock - 1) / kBlock; }

}  // namespace

void StoreBarrier::arrive(int rank) {
  store_.set(presence_of(rank), std::vector<uint8_t>{'y'});
  int member = rank, count = size_;
  for (int level = 0;; ++level) {
    const int block = member / kBlock;
    if (store_.add(counter_of(level, block), 1) < members_of(block, count)) return;
    member = block;
    count = blocks_of(count);
    if (count == 1) break;
  }
  store_.compareSet(kComplete, "", kAllArrived);
}

void StoreBarrier::abandon(const std::string& why) { store_.compareSet(kComplete, "", why); }

std::optional<std::string> StoreBarrier::why_abandoned() {
  std::string value = store_.get_to_str(kComplete);
  if (value == kAllArrived) return std::nullopt;
  return value;
}

bool StoreBarrier::is_complete() { return store_.check({kComplete}); }

std::vector<int> StoreBarrier::missing() {
  std::vector<int> ranks;
  for (int block = 0; block < blocks_of(size_); ++block) {
    const int members = members_of(block, size_);
    if (store_.add(counter_of(0, block), 0) == members) continue;
    for (int rank = block * kBlock; rank < block * kBlock + members; ++rank) {
      if (!store_.check({presence_of(rank)})) ranks.push_back(rank);
    }
  }
  return ranks;
}

}  // namespace fsdp::comm
