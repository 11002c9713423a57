#include "memory_budget.h"

#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace fsdp::fuzz {
namespace {

std::atomic<bool> watching{false};
std::atomic<int64_t> in_use{0};  // memory allocated while watching; negative if older memory was freed
std::atomic<int64_t> budget{0};

// The sanitizer calls on_malloc and on_free inside malloc and free.
void on_malloc(const volatile void*, size_t size) {
  if (!watching) return;
  const int64_t now = in_use += static_cast<int64_t>(size);
  if (now > budget) {
    watching = false;
    std::fprintf(stderr, "FINDING: %lld bytes of memory in use; the budget for this input is %lld\n",
                 static_cast<long long>(now), static_cast<long long>(budget));
    std::abort();
  }
}

void on_free(const volatile void* memory) {
  if (watching && memory != nullptr) in_use -= static_cast<int64_t>(__sanitizer_get_allocated_size(memory));
}

}  // namespace

MemoryBudget::MemoryBudget(size_t bytes) {
  [[maybe_unused]] static const int installed = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  budget = static_cast<int64_t>(bytes);
  in_use = 0;
  watching = true;
}

MemoryBudget::~MemoryBudget() { watching = false; }

}  // namespace fsdp::fuzz
