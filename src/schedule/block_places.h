// Chooses places for blocks in one piece of memory of which only a few are in use at a time. Computes offsets only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::schedule {

// [Note: two ends]
// Of the units that follow one another, two live at a time: the one in use and the next one (of gradient buffers, the
// one being captured and the one being reduced). A block is placed at the bottom of the memory or at its top, at the
// end where the other block is not. So two blocks fit exactly if their sum fits, whatever the sizes and the order:
// there is no fragmentation, and memory for the largest sum of neighbours is enough. If more than two blocks are in use
// at a time, the others are placed in the smallest gap that fits, and may find none.
//
// Threads: guarded by the caller's lock.
class BlockPlaces {
 public:
  // Sizes are rounded up to a multiple of this many bytes.
  static constexpr int64_t kGranularity = 512;
  static int64_t rounded(int64_t nbytes);

  explicit BlockPlaces(int64_t capacity = 0) : capacity_(capacity) {}
  int64_t capacity() const { return capacity_; }
  bool empty() const { return blocks_.empty(); }

  // Takes a block of `nbytes` and returns its first byte, or nullopt if no gap is large enough.
  std::optional<int64_t> take(int64_t nbytes);
  // Releases the block that begins there. Returns false if there is none.
  bool release(int64_t begin);

 private:
  struct Block {
    int64_t begin;
    int64_t end;
  };
  int64_t capacity_;
  std::vector<Block> blocks_;  // by offset
};

}  // namespace fsdp::schedule
