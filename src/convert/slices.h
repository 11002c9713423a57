// Copies a tensor's elements in slices.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "convert/convert.h"
#include "convert/source.h"

namespace fsdp::convert {

constexpr int64_t kSliceBytes = int64_t{32} << 20;

// Calls `append` with the elements in row-major order, 1-D, at most kSliceBytes at a time; for a tensor without
// elements once, with an empty slice. Adds the tensor to `result`.
template <typename Append>
void copy_tensor(Source& source, const StateTensor& tensor, Converted& result, const Append& append) {
  const int64_t numel = tensor.info.numel();
  const int64_t step = kSliceBytes / static_cast<int64_t>(c10::elementSize(tensor.info.dtype));
  int64_t begin = 0;
  do {
    const int64_t end = std::min(numel, begin + step);
    const at::Tensor slice = at::empty({end - begin}, at::TensorOptions(tensor.info.dtype));
    source.read(tensor, begin, end, slice);
    append(slice);
    begin = end;
  } while (begin < numel);
  ++result.tensors;
  result.bytes += tensor.info.nbytes();
}

}  // namespace fsdp::convert
