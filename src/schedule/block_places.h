// Where blocks lie in one piece of memory of which only a few are in use at a time. Offsets only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::schedule {

// [Note: two ends]
// Of units that follow one another, two live at a time: the one in use and the next one (gradient buffers: the one
// being captured and the one being reduced). A block goes to the bottom of the memory or to its top, wherever the other
// one is not. So whatever the sizes and the order, two blocks fit exactly when their sum does: there is no
// fragmentation, and memory for the largest sum of neighbours is enough. With more than two at a time the others go to
// the smallest gap, and may find none.
//
// Threads: the caller's lock.
class BlockPlaces {
 public:
  // Sizes are rounded up to this many bytes.
  static constexpr int64_t kGranularity = 512;
  static int64_t rounded(int64_t nbytes);

  explicit BlockPlaces(int64_t capacity = 0) : capacity_(capacity) {}
  int64_t capacity() const { return capacity_; }
  bool empty() const { return blocks_.empty(); }

  // The first byte of a block of `nbytes`, which is in use from now on; nothing where no gap is large enough.
  std::optional<int64_t> take(int64_t nbytes);
  // The block that begins there is free again. Returns false if there is none.
  bool give_back(int64_t begin);

 private:
  struct Block {
    int64_t begin;
    int64_t end;
  };
  int64_t capacity_;
  std::vector<Block> blocks_;  // in order of place
};

}  // namespace fsdp::schedule
