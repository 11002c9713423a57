#include "base/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>

#include "base/error_message.h"

namespace fsdp::base {

// The CPU allocator has no error class of its own. Its message is: "[enforce fail at alloc_cpu.cpp:…] …
// DefaultCPUAllocator: can't allocate memory: you tried to allocate … bytes".
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  return message_of(error).find("DefaultCPUAllocator: can't allocate memory") != std::string::npos;
}

}  // namespace fsdp::base
