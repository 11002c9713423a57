// A bit set over the parameters of a FlatParameter.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::engine {

class ParameterMask {
 public:
  ParameterMask() = default;
  explicit ParameterMask(int64_t size) : size_(size), words_((size + 63) / 64) { clear(); }
  bool test(int64_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  // Sets a bit and returns whether it was clear.
  bool set(int64_t i);
  void clear(int64_t i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  void clear();
  void merge(const ParameterMask& other);
  int64_t count() const;
  // Bits that belong to no parameter are ones. So if the mask contains all parameters, all bits of all words are ones
  // (see Communicator::reduce_scatter).
  std::vector<uint64_t>& words() { return words_; }

 private:
  int64_t size_ = 0;
  std::vector<uint64_t> words_;
};

// ORs the masks of a group's ranks; for use if no other collective carries them. Does nothing if `group` is null.
// Blocks.
void merge_over(Communicator* group, ParameterMask& mask, const CollectiveId& id);

}  // namespace fsdp::engine
