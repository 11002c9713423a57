// Tensors of rank 0, of which each rank has kept those that it wants.
#pragma once

#include <map>
#include <set>
#include <string>

#include "fsdp/communicator.h"
#include "state/tensor_source.h"

namespace fsdp::state {

class ReceivedTensors final : public TensorSource {
 public:
  // `own`: rank 0's source, null on the other ranks. `descriptions`: those of all its tensors. `wanted`: the names of
  // those that this rank keeps, in host memory. They are sent one after the other, through `device`. Collective.
  ReceivedTensors(const TensorSource* own, std::map<std::string, SourceTensor> descriptions,
                  const std::set<std::string>& wanted, Communicator& world, c10::Device device);

  const std::map<std::string, SourceTensor>& tensors() const override { return descriptions_; }
  void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const override;

 private:
  std::map<std::string, SourceTensor> descriptions_;
  std::map<std::string, at::Tensor> kept_;  // 1-D, in the order of their memory
};

}  // namespace fsdp::state
