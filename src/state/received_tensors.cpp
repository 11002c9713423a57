#include "state/received_tensors.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace fsdp::state {

ReceivedTensors::ReceivedTensors(const TensorSource* own, std::map<std::string, SourceTensor> descriptions,
                                 const std::set<std::string>& wanted, Communicator& world, c10::Device device)
    : descriptions_(std::move(descriptions)) {
  for (const auto& [name, tensor] : descriptions_) {
    const at::Tensor whole = at::empty({tensor.numel()}, at::TensorOptions(tensor.dtype).device(device));
    if (own) own->read(name, 0, tensor.numel(), whole);
    if (tensor.numel() > 0) world.broadcast(whole, 0, {"load " + name, 0, Pass::kUser})->wait();
    if (wanted.count(name) > 0) kept_[name] = whole.cpu();
  }
}

void ReceivedTensors::read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const {
  if (begin < end) out.copy_(kept_.at(name).narrow(0, begin, end - begin));
}

}  // namespace fsdp::state
