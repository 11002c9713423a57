#include "support/memory/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace fsdp::testing {
namespace {

c10::Allocator* before = nullptr;
std::atomic<int64_t> allocations{0}, current{0}, peak{0};

struct Block {
  c10::DataPtr data;
  int64_t bytes;
};
// Blocks are keyed by address, because kernels that allocate raw memory free it by its address alone.
std::mutex blocks_mutex;
std::unordered_map<void*, Block>& blocks() {
  static auto* map = new std::unordered_map<void*, Block>;
  return *map;
}

void free_block(void* memory) {
  std::unordered_map<void*, Block>::node_type block;
  {
    std::lock_guard lock(blocks_mutex);
    block = blocks().extract(memory);
  }
  if (block) {
    current -= block.mapped().bytes;
  } else {
    before->raw_deallocate(memory);  // allocated before counting began
  }
}

// Never destroyed: memory that was allocated here may be freed at any time later.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_.allocate(bytes);
    if (bytes == 0) return data;
    ++allocations;
    const int64_t now = current += static_cast<int64_t>(bytes);
    for (int64_t seen = peak; seen < now && !peak.compare_exchange_weak(seen, now);) {
    }
    void* memory = data.get();
    std::lock_guard lock(blocks_mutex);
    blocks().emplace(memory, Block{std::move(data), static_cast<int64_t>(bytes)});
    return {memory, memory, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override { inner_.copy_data(to, from, count); }

 private:
  c10::Allocator& inner_;
};

}  // namespace

CountedMemory::CountedMemory() {
  before = c10::GetCPUAllocator();
  static auto* counting = new CountingAllocator(*before);
  c10::SetCPUAllocator(counting);
  reset_peak();
}

CountedMemory::~CountedMemory() { c10::SetCPUAllocator(before); }

int64_t CountedMemory::allocations() const { return fsdp::testing::allocations; }
int64_t CountedMemory::current_bytes() const { return current; }
int64_t CountedMemory::peak_bytes() const { return peak; }
void CountedMemory::reset_peak() { peak = current.load(); }

}  // namespace fsdp::testing
