#include "fsdp/communicator.h"

#include <ATen/ops/empty.h>

#include "fsdp/memory_sharing.h"

namespace fsdp {

at::Tensor MemorySharing::reduction_input(int64_t nbytes) { return at::empty({nbytes}, at::kByte); }

MemorySharing& Communicator::memory_sharing() {
  static MemorySharing none;  // has no state
  return none;
}

}  // namespace fsdp
