#include "state/tensor_source.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include "checkpoint/dtype.h"
#include "state/memory_order.h"

namespace fsdp {

std::string shown(const SourceTensor& tensor) {
  return c10::str(checkpoint::safetensors_dtype(tensor.dtype), " [", c10::Join(", ", tensor.sizes), "]");
}

std::string shown(const at::Tensor& tensor) {
  return tensor.defined() ? shown({tensor.scalar_type(), tensor.sizes().vec(), {}}) : "undefined";
}

std::string lacking(const TensorSource& source, const std::string& name, const WantedElements& wanted) {
  const SourceTensor& stored = source.tensors().at(name);
  if (wanted.begin == wanted.end || stored.strides == wanted.strides) {
    return source.lacking(name, wanted.begin, wanted.end);
  }
  return source.lacking(name, 0, stored.numel());
}

void read_elements(const TensorSource& source, const std::string& name, const WantedElements& wanted,
                   const at::Tensor& out) {
  const SourceTensor& stored = source.tensors().at(name);
  if (wanted.begin == wanted.end || stored.strides == wanted.strides) {
    source.read(name, wanted.begin, wanted.end, out);
    return;
  }
  const at::Tensor whole = at::empty({stored.numel()}, at::TensorOptions(stored.dtype));
  source.read(name, 0, stored.numel(), whole);
  out.copy_(reordered(whole, stored.sizes, stored.strides, wanted.strides)
                .narrow(0, wanted.begin, wanted.end - wanted.begin));
}

}  // namespace fsdp
