#include "state/tensor_source.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "formats/common/dtype.h"
#include "state/equal_bits.h"
#include "state/memory_order.h"

namespace fsdp::state {

std::string shown(const SourceTensor& tensor) {
  return c10::str(formats::safetensors_dtype(tensor.dtype), " [", c10::Join(", ", tensor.sizes), "]");
}

std::string shown(const at::Tensor& tensor) {
  return tensor.defined() ? shown({tensor.scalar_type(), tensor.sizes().vec(), {}}) : "undefined";
}

bool TensorSource::same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const {
  // If one of them has another memory order, each read needs the whole tensor.
  const bool alike = tensors().at(one).strides == wanted.strides && tensors().at(other).strides == wanted.strides;
  const int64_t most = alike ? int64_t{1} << 20 : wanted.end - wanted.begin;
  for (int64_t begin = wanted.begin; begin < wanted.end; begin += most) {
    const WantedElements slice{begin, std::min(begin + most, wanted.end), wanted.strides};
    const at::Tensor a = at::empty({slice.end - slice.begin}, at::TensorOptions(tensors().at(one).dtype));
    const at::Tensor b = at::empty_like(a);
    read_elements(*this, one, slice, a);
    read_elements(*this, other, slice, b);
    if (!equal_bits(a, b)) return false;
  }
  return true;
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

}  // namespace fsdp::state
