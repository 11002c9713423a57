#include "planner/memory/caching_allocator.h"

#include <ATen/ceil_div.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>

namespace fsdp::planner {
namespace {

constexpr auto kMinBlock = static_cast<int64_t>(c10::CachingAllocator::kMinBlockSize);
constexpr auto kSmall = static_cast<int64_t>(c10::CachingAllocator::kSmallSize);
constexpr auto kSmallSegment = static_cast<int64_t>(c10::CachingAllocator::kSmallBuffer);
constexpr int64_t kLargeSegment = 20 << 20;
constexpr auto kOwnSegment = static_cast<int64_t>(c10::CachingAllocator::kMinLargeAlloc);
constexpr auto kSegmentUnit = static_cast<int64_t>(c10::CachingAllocator::kRoundLarge);

int64_t segment_size(int64_t size) {
  if (size <= kSmall) return kSmallSegment;
  return size < kOwnSegment ? kLargeSegment : at::round_up(size, kSegmentUnit);
}

}  // namespace

void PeakBytes::add(int64_t bytes) {
  current += bytes;
  peak = std::max(peak, current);
}

DeviceMemoryExhausted::DeviceMemoryExhausted(int64_t requested, int64_t reserved, int64_t capacity)
    : std::runtime_error(c10::str("the device has no memory for ", requested, " bytes: ", reserved, " of ", capacity,
                                  " bytes are in segments in use")) {}

CachingAllocator::CachingAllocator(const CachingAllocatorOptions& options) : options_(options), end_(options.base) {}

uint64_t CachingAllocator::allocate(int64_t nbytes, int stream) {
  TORCH_INTERNAL_ASSERT(nbytes > 0);
  const int64_t size = at::round_up(nbytes, kMinBlock);
  const bool small = size <= kSmall;
  auto block = find_free(size, stream, small);
  if (block == blocks_.end()) block = new_segment(size, stream, small);
  if (block == blocks_.end() && give_back_large_enough(size, stream)) block = new_segment(size, stream, small);
  if (block == blocks_.end()) {
    give_back_all();
    ++retries_;
    block = new_segment(size, stream, small);
  }
  if (block == blocks_.end()) throw DeviceMemoryExhausted(nbytes, reserved_.current, options_.capacity);
  if (splits(block->second, size)) split(block, size);
  block->second.used = true;
  allocated_.add(block->second.size);
  return block->first;
}

void CachingAllocator::free(uint64_t address) {
  auto block = blocks_.find(address);
  TORCH_INTERNAL_ASSERT(block != blocks_.end() && block->second.used, "no block in use begins at ", address);
  block->second.used = false;
  allocated_.add(-block->second.size);
  if (!block->second.ends_segment) {
    const auto next = std::next(block);
    if (!next->second.used) block = merge(block, next);
  }
  if (!block->second.begins_segment) {
    const auto previous = std::prev(block);
    if (!previous->second.used) block = merge(previous, block);
  }
  add_free(block);
}

CachingAllocator::Blocks::iterator CachingAllocator::find_free(int64_t size, int stream, bool small) {
  FreeBlocks& free = free_blocks(small);
  const auto found = free.lower_bound({stream, size, 0});
  if (found == free.end() || std::get<0>(*found) != stream) return blocks_.end();
  const int64_t available = std::get<1>(*found);
  // Blocks that are never split are for requests of about their size.
  if (size < options_.max_split_size && available >= options_.max_split_size) return blocks_.end();
  if (size >= options_.max_split_size && available >= size + kLargeSegment) return blocks_.end();
  const auto block = blocks_.find(std::get<2>(*found));
  free.erase(found);
  return block;
}

CachingAllocator::Blocks::iterator CachingAllocator::new_segment(int64_t size, int stream, bool small) {
  const int64_t nbytes = segment_size(size);
  if (nbytes > options_.capacity - reserved_.current) return blocks_.end();
  reserved_.add(nbytes);
  ++segments_;
  return blocks_.emplace(take_addresses(nbytes), Block{nbytes, stream, small, false, true, true}).first;
}

// With a limit on splitting, gives back whole segments of blocks that are never split: the smallest one that is large
// enough, or else the largest ones of the stream. Returns whether enough was given back.
bool CachingAllocator::give_back_large_enough(int64_t size, int stream) {
  if (options_.max_split_size == INT64_MAX) return false;
  const int64_t wanted = std::max(size, options_.max_split_size);
  auto found = free_large_.lower_bound({stream, wanted, 0});
  if (found != free_large_.end() && std::get<0>(*found) == stream) {
    give_back(blocks_.find(std::get<2>(*found)));
    return true;
  }
  int64_t returned = 0;
  while (returned < wanted) {
    found = free_large_.lower_bound({stream, INT64_MAX, 0});
    if (found == free_large_.begin()) return false;
    --found;
    const auto [owner, nbytes, address] = *found;
    if (owner != stream || nbytes < options_.max_split_size) return false;
    returned += nbytes;
    give_back(blocks_.find(address));
  }
  return true;
}

void CachingAllocator::give_back_all() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto current = block++;
    const Block& it = current->second;
    if (!it.used && it.begins_segment && it.ends_segment) give_back(current);
  }
}

void CachingAllocator::give_back(Blocks::iterator block) {
  remove_free(block);
  reserved_.add(-block->second.size);
  --segments_;
  return_addresses(block->first, block->second.size);
  blocks_.erase(block);
}

bool CachingAllocator::splits(const Block& block, int64_t size) const {
  const int64_t rest = block.size - size;
  return block.small ? rest >= kMinBlock : size < options_.max_split_size && rest > kSmall;
}

void CachingAllocator::split(Blocks::iterator block, int64_t size) {
  Block rest = block->second;
  rest.size -= size;
  rest.begins_segment = false;
  block->second.size = size;
  block->second.ends_segment = false;
  add_free(blocks_.emplace(block->first + static_cast<uint64_t>(size), rest).first);
}

// Makes one block of two neighbours, of which those that are listed as free no longer are.
CachingAllocator::Blocks::iterator CachingAllocator::merge(Blocks::iterator first, Blocks::iterator second) {
  remove_free(first);
  remove_free(second);
  first->second.size += second->second.size;
  first->second.ends_segment = second->second.ends_segment;
  blocks_.erase(second);
  return first;
}

void CachingAllocator::add_free(Blocks::iterator block) {
  free_blocks(block->second.small).insert({block->second.stream, block->second.size, block->first});
}

void CachingAllocator::remove_free(Blocks::iterator block) {
  free_blocks(block->second.small).erase({block->second.stream, block->second.size, block->first});
}

// Takes the lowest free addresses.
uint64_t CachingAllocator::take_addresses(int64_t size) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < size) continue;
    const auto [address, nbytes] = *gap;
    gaps_.erase(gap);
    if (nbytes > size) gaps_.emplace(address + static_cast<uint64_t>(size), nbytes - size);
    return address;
  }
  end_ += static_cast<uint64_t>(size);
  return end_ - static_cast<uint64_t>(size);
}

void CachingAllocator::return_addresses(uint64_t address, int64_t size) {
  auto gap = gaps_.emplace(address, size).first;
  const auto next = std::next(gap);
  if (next != gaps_.end() && address + static_cast<uint64_t>(size) == next->first) {
    gap->second += next->second;
    gaps_.erase(next);
  }
  if (gap == gaps_.begin()) return;
  const auto previous = std::prev(gap);
  if (previous->first + static_cast<uint64_t>(previous->second) != address) return;
  previous->second += gap->second;
  gaps_.erase(gap);
}

}  // namespace fsdp::planner
