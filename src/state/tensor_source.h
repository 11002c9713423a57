// Sources of tensors to load, by name: the caller, rank 0, or a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdp::state {

struct SourceTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // stored_strides (memory_order.h)

  int64_t numel() const { return c10::multiply_integers(sizes); }
};

// Describes dtype and shape, such as "F32 [3, 5]".
std::string shown(const SourceTensor& tensor);
std::string shown(const at::Tensor& tensor);

// Elements [begin, end) of a tensor, in the memory order that the destination has (`strides`).
struct WantedElements {
  int64_t begin;
  int64_t end;
  const std::vector<int64_t>& strides;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::map<std::string, SourceTensor>& tensors() const = 0;
  // Describes the elements of [begin, end) that the source does not have. Empty if it has all of them.
  virtual std::string lacking(const std::string& /*name*/, int64_t /*begin*/, int64_t /*end*/) const { return {}; }
  // Whether this rank sees the same bits in these elements of both tensors, which must have the same shape and dtype
  // and lack no elements. Does not communicate with other ranks. The default reads both tensors slice by slice; sources
  // may override it.
  virtual bool same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const;
  // Copies elements [begin, end), in the tensor's stored order, into `out`, which is 1-D, of the tensor's dtype, on any
  // device. If a source sends tensors between ranks, all ranks must call it in the same order, even for no elements.
  virtual void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const = 0;
};

// Describes the wanted elements that a source lacks. If the source stores the tensor in another memory order, all of
// its elements are needed.
std::string lacking(const TensorSource& source, const std::string& name, const WantedElements& wanted);
void read_elements(const TensorSource& source, const std::string& name, const WantedElements& wanted,
                   const at::Tensor& out);

}  // namespace fsdp::state
