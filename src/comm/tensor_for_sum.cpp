#include "comm/tensor_for_sum.h"

#include <ATen/ops/empty.h>

#include "base/allocation_tag.h"

namespace fsdp::comm {

at::Tensor tensor_for_sum(const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() == input.scalar_type()) return output;
  const base::AllocationTag tag(base::AllocationPurpose::kCommunication);
  return at::empty({output.numel()}, input.options());
}

}  // namespace fsdp::comm
