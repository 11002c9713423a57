#include "fsdp/communicator.h"

#include <ATen/ops/empty.h>

namespace fsdp {

at::Tensor Communicator::reduction_input(int64_t nbytes) { return at::empty({nbytes}, at::kByte); }

}  // namespace fsdp
