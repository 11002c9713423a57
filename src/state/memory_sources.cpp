#include "state/memory_sources.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "state/equal_bits.h"
#include "state/memory_order.h"

namespace fsdp::state {

namespace {

void check_part(const std::string& name, const ShardedTensor& tensor, const TensorPart& part) {
  const int64_t numel = c10::multiply_integers(tensor.sizes);
  TORCH_CHECK(0 <= part.begin && part.begin <= part.end && part.end <= numel, "fsdp: '", name, "': elements [",
              part.begin, ", ", part.end, ") of ", numel);
  TORCH_CHECK(part.values.defined() && part.values.dim() == 1 && part.values.numel() == part.end - part.begin,
              "fsdp: '", name, "': the values of elements [", part.begin, ", ", part.end,
              ") must be 1-D and of that number, but are of shape ",
              part.values.defined() ? c10::str(part.values.sizes()) : "(undefined)");
  TORCH_CHECK(part.values.scalar_type() == tensor.dtype, "fsdp: '", name, "': is ", tensor.dtype,
              ", but the values of elements [", part.begin, ", ", part.end, ") are ", part.values.scalar_type());
}

// Whether two parts have the same values where they overlap.
bool agree(const TensorPart& a, const TensorPart& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin >= end ||
         equal_bits(a.values.narrow(0, begin - a.begin, end - begin), b.values.narrow(0, begin - b.begin, end - begin));
}

// Parts are sorted by their first elements: if any earlier part overlaps a part, the overlap is in the earlier part
// that extends furthest.
void check_overlaps(const std::string& name, const std::vector<TensorPart>& parts) {
  const TensorPart* furthest = nullptr;
  for (const TensorPart& part : parts) {
    TORCH_CHECK(!furthest || agree(*furthest, part), "fsdp: '", name, "': elements [", part.begin, ", ",
                std::min(part.end, furthest->end), ") are given twice, with different values");
    if (!furthest || part.end > furthest->end) furthest = &part;
  }
}

}  // namespace

WholeTensors::WholeTensors(std::map<std::string, at::Tensor> tensors) : values_(std::move(tensors)) {
  for (const auto& [name, value] : values_) {
    TORCH_CHECK(value.defined(), "fsdp: '", name, "' is an undefined tensor");
    descriptions_[name] = {
        value.scalar_type(), value.sizes().vec(),
        value.is_non_overlapping_and_dense() ? stored_strides(value.sizes(), value.strides()) : std::vector<int64_t>{}};
  }
}

// Compares all elements of both tensors, which needs no copy.
bool WholeTensors::same_elements(const std::string& one, const std::string& other,
                                 const WantedElements& /*wanted*/) const {
  return equal_bits(values_.at(one), values_.at(other));
}

void WholeTensors::read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const {
  if (begin == end) return;
  out.copy_(elements_of(values_.at(name)).values.narrow(0, begin, end - begin));
}

TensorParts::TensorParts(ShardedStateDict tensors) : values_(std::move(tensors)) {
  for (auto& [name, tensor] : values_) {
    for (const TensorPart& part : tensor.parts) check_part(name, tensor, part);
    std::sort(tensor.parts.begin(), tensor.parts.end(),
              [](const TensorPart& a, const TensorPart& b) { return a.begin < b.begin; });
    check_overlaps(name, tensor.parts);
    descriptions_[name] = {tensor.dtype, tensor.sizes, tensor.strides};
  }
}

std::string TensorParts::lacking(const std::string& name, int64_t begin, int64_t end) const {
  for (const TensorPart& part : values_.at(name).parts) {
    if (part.begin > begin) break;
    begin = std::max(begin, part.end);
  }
  return begin < end ? c10::str("elements [", begin, ", ", end, ")") : "";
}

void TensorParts::read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const {
  for (const TensorPart& part : values_.at(name).parts) {
    const int64_t first = std::max(begin, part.begin), last = std::min(end, part.end);
    if (first < last) {
      out.narrow(0, first - begin, last - first)
          .copy_(part.values.detach().narrow(0, first - part.begin, last - first));
    }
  }
}

}  // namespace fsdp::state
