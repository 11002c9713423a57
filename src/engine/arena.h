// One piece of memory for buffers of which only a few live at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp {

// [Note: two ends]
// Of units that follow one another, two live at a time: the one in use and the next one (gradient buffers: the one
// being captured and the one being reduced). A block goes to the bottom of the memory or to its top, wherever the other
// one is not. So whatever the sizes and the order, two blocks fit exactly when their sum does: there is no
// fragmentation, and memory for the largest sum of neighbours is enough. With more than two at a time the others go to
// the smallest gap, and may find none.
//
// Threads: the caller's lock.
class Arena {
 public:
  explicit Arena(c10::Device device) : device_(device) {}

  // Sizes are rounded up to this many bytes.
  static constexpr int64_t kGranularity = 512;
  static int64_t rounded(int64_t nbytes);

  // A kByte tensor of `nbytes`; nothing where no gap is large enough.
  std::optional<at::Tensor> take(int64_t nbytes);
  // Whether the block came from here and is free now.
  bool give_back(const at::Tensor& block);

  bool empty() const { return blocks_.empty(); }
  int64_t capacity() const { return memory_.defined() ? memory_.numel() : 0; }
  const at::Tensor& memory() const { return memory_; }
  // Gives up the memory, and allocates as much as this, if any. The arena must be empty.
  void resize(int64_t nbytes);

 private:
  struct Block {
    int64_t begin;
    int64_t end;
  };

  c10::Device device_;
  at::Tensor memory_;          // kByte
  std::vector<Block> blocks_;  // in order of place
};

}  // namespace fsdp
