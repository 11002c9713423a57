// Tensors by name that are to be loaded: given by the caller, by rank 0, or by a checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

struct SourceTensor {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // stored_strides (memory_order.h)

  int64_t numel() const { return c10::multiply_integers(sizes); }
};

// "F32 [3, 5]"
std::string shown(const SourceTensor& tensor);
std::string shown(const at::Tensor& tensor);

// Elements [begin, end) of a tensor that lies as `strides` say where they are to go.
struct WantedElements {
  int64_t begin;
  int64_t end;
  const std::vector<int64_t>& strides;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::map<std::string, SourceTensor>& tensors() const = 0;
  // Which of elements [begin, end) are not there; empty: none.
  virtual std::string lacking(const std::string& /*name*/, int64_t /*begin*/, int64_t /*end*/) const { return {}; }
  // Whether this rank sees the same bits in these elements of both, which have the same shape and dtype and lack none.
  // Touches no other rank. Reads both, a slice after the other, unless a source knows better.
  virtual bool same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const;
  // Copies elements [begin, end), in the order in which the tensor lies, into `out`: 1-D, of its dtype, on any device.
  // Where a source sends tensors, all ranks call it in the same order, also for no elements.
  virtual void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const = 0;
};

// What a source lacks of them: all of the tensor is needed where it lies in another order there.
std::string lacking(const TensorSource& source, const std::string& name, const WantedElements& wanted);
void read_elements(const TensorSource& source, const std::string& name, const WantedElements& wanted,
                   const at::Tensor& out);

}  // namespace fsdp
