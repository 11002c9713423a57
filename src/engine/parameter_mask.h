// Which of a FlatParameter's parameters; a bit each.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {

class ParameterMask {
 public:
  ParameterMask() = default;
  explicit ParameterMask(int64_t size) : size_(size), words_((size + 63) / 64) { clear(); }
  bool test(int64_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  // Returns whether the bit was clear.
  bool set(int64_t i);
  void clear(int64_t i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  void clear();
  void merge(const ParameterMask& other);
  int64_t count() const;
  // Bits that belong to no parameter are ones: where all parameters are in, all bits of all words are (see
  // Communicator::reduce_scatter).
  std::vector<uint64_t>& words() { return words_; }

 private:
  int64_t size_ = 0;
  std::vector<uint64_t> words_;
};

// ORs the masks of a group's ranks, where no other collective carries them. A null group: nothing to do. Blocks.
void merge_over(Communicator* group, ParameterMask& mask, const CollectiveId& id);

}  // namespace fsdp
