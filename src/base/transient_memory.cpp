#include "base/transient_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace fsdp::base {
namespace {

constexpr int64_t kMappedBytes = 1 << 20;  // blocks of at least this size are mapped

}  // namespace

at::Tensor transient_bytes(int64_t nbytes, c10::Device device) {
  at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  if (!device.is_cpu() || nbytes < kMappedBytes) return at::empty({nbytes}, options);
  auto size = static_cast<size_t>(nbytes);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, memory != MAP_FAILED, "fsdp: cannot allocate ", nbytes,
                   " bytes on the CPU: ", std::strerror(errno));
  return at::from_blob(memory, {nbytes}, [size](void* mapped) { munmap(mapped, size); }, options);
}

}  // namespace fsdp::base
