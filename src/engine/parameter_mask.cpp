#include "engine/parameter_mask.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

namespace fsdp::engine {

bool ParameterMask::set(int64_t i) {
  uint64_t bit = uint64_t{1} << (i % 64);
  bool was_clear = (words_[i / 64] & bit) == 0;
  words_[i / 64] |= bit;
  return was_clear;
}

void ParameterMask::clear() {
  std::fill(words_.begin(), words_.end(), uint64_t{0});
  if (size_ % 64 != 0) words_.back() = ~uint64_t{0} << (size_ % 64);
}

void ParameterMask::merge(const ParameterMask& other) {
  for (size_t word = 0; word < words_.size(); ++word) words_[word] |= other.words_[word];
}

int64_t ParameterMask::count() const {
  const auto unused = static_cast<int64_t>(words_.size() * 64) - size_;
  return std::accumulate(words_.begin(), words_.end(), -unused,
                         [](int64_t sum, uint64_t word) { return sum + std::popcount(word); });
}

void merge_over(Communicator* group, ParameterMask& mask, const CollectiveId& id) {
  if (!group || group->size() == 1) return;
  std::vector<uint64_t>& words = mask.words();
  const std::string mine(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint64_t));
  for (const std::string& bytes : group->all_gather_bytes(mine, id)) {
    std::vector<uint64_t> others(words.size());
    std::memcpy(others.data(), bytes.data(), mine.size());
    for (size_t word = 0; word < words.size(); ++word) words[word] |= others[word];
  }
}

}  // namespace fsdp::engine
