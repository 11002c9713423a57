// Makes the counting allocator available to a Python process, through ctypes.
#include "support/memory/counting_allocator.h"

namespace {

fsdp::testing::CountedMemory* memory = nullptr;

}  // namespace

extern "C" {

void counted_memory_begin() { memory = new fsdp::testing::CountedMemory(); }  // until the process ends
void counted_memory_reset_peak() { memory->reset_peak(); }
int64_t counted_memory_peak() { return memory->peak_bytes(); }

}  // extern "C"
