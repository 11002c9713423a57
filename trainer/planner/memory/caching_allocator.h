// A replica of LibTorch's caching allocator for CUDA: the same blocks in the same segments, without any memory.
//
// Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of LibTorch 2.13. Sizes up to 1 MiB come
// from segments of 2 MiB, sizes below 10 MiB from segments of 20 MiB, larger ones from segments of their own size
// rounded up to 2 MiB. A request takes the smallest free block of its stream and class of size, and splits it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

namespace fsdp::planner {

struct CachingAllocatorOptions {
  int64_t capacity = INT64_MAX;        // bytes that the device grants for segments
  int64_t max_split_size = INT64_MAX;  // larger blocks are not split
  uint64_t base = 0;                   // the lowest address of a segment
};

// Bytes now, and the most at any time so far.
struct PeakBytes {
  int64_t current = 0;
  int64_t peak = 0;
  void add(int64_t bytes);
};

// Thrown when a request does not fit even after all free segments were given back.
class DeviceMemoryExhausted : public std::runtime_error {
 public:
  DeviceMemoryExhausted(int64_t requested, int64_t reserved, int64_t capacity);
};

// Not thread-safe.
class CachingAllocator {
 public:
  explicit CachingAllocator(const CachingAllocatorOptions& options = {});

  // Returns the address of a block of at least `nbytes` > 0, whose memory is freed in the order of `stream`. Throws
  // DeviceMemoryExhausted.
  uint64_t allocate(int64_t nbytes, int stream);
  // Frees a block. `address`: the result of allocate().
  void free(uint64_t address);

  // Bytes in blocks that are in use, each rounded up to 512.
  const PeakBytes& allocated() const { return allocated_; }
  // Bytes in segments.
  const PeakBytes& reserved() const { return reserved_; }
  // How often all free segments had to be given back before a request fitted. The device stands still meanwhile.
  int64_t retries() const { return retries_; }
  int64_t segments() const { return segments_; }

 private:
  struct Block {
    int64_t size;
    int stream;
    bool small;
    bool used;
    bool begins_segment;
    bool ends_segment;
  };
  using Blocks = std::map<uint64_t, Block>;
  using FreeKey = std::tuple<int, int64_t, uint64_t>;  // stream, size, address
  using FreeBlocks = std::set<FreeKey>;

  FreeBlocks& free_blocks(bool small) { return small ? free_small_ : free_large_; }
  Blocks::iterator find_free(int64_t size, int stream, bool small);
  Blocks::iterator new_segment(int64_t size, int stream, bool small);
  bool give_back_large_enough(int64_t size, int stream);
  void give_back_all();
  void give_back(Blocks::iterator block);
  bool splits(const Block& block, int64_t size) const;
  void split(Blocks::iterator block, int64_t size);
  Blocks::iterator merge(Blocks::iterator first, Blocks::iterator second);
  void add_free(Blocks::iterator block);
  void remove_free(Blocks::iterator block);
  uint64_t take_addresses(int64_t size);
  void return_addresses(uint64_t address, int64_t size);

  CachingAllocatorOptions options_;
  Blocks blocks_;
  FreeBlocks free_small_;
  FreeBlocks free_large_;
  std::map<uint64_t, int64_t> gaps_;  // free addresses below `end_`
  uint64_t end_;
  PeakBytes allocated_;
  PeakBytes reserved_;
  int64_t retries_ = 0;
  int64_t segments_ = 0;
};

}  // namespace fsdp::planner
