// Tells ThreadSanitizer what LibTorch, which is not instrumented, reads and writes; does nothing without
// ThreadSanitizer.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/sanitizers.h"

#if FSDP_THREAD_SANITIZER
extern "C" {
void __tsan_read_range(void* begin, unsigned long nbytes);
void __tsan_write_range(void* begin, unsigned long nbytes);
}
#endif

namespace fsdp::comm {

#if FSDP_THREAD_SANITIZER
inline void note_read(const at::Tensor& tensor) {
  __tsan_read_range(const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes());
}
inline void note_write(const at::Tensor& tensor) {
  __tsan_write_range(const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes());
}
#else
inline void note_read(const at::Tensor&) {}
inline void note_write(const at::Tensor&) {}
#endif

}  // namespace fsdp::comm
