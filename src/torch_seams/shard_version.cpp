#include "torch_seams/shard_version.h"

#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void bump_version(const at::Tensor& tensor) { torch::autograd::impl::bump_version(tensor); }

}  // namespace fsdp::seams
