#include "state/rank0_source.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "formats/common/dtype.h"

namespace fsdp::state {

namespace {

using nlohmann::json;

// Broadcasts to the first rank of each other part and of each copy of the model, and from it to the other ranks of the
// copy.
void broadcast(const at::Tensor& tensor, const ProcessMesh& mesh, const CollectiveId& id) {
  if (mesh.parts && mesh.rank() == 0) mesh.parts->broadcast(tensor, 0, id)->wait();
  if (mesh.world) {
    mesh.world->broadcast(tensor, 0, id)->wait();
    return;
  }
  if (mesh.shard->rank() == 0) mesh.replicate->broadcast(tensor, 0, id)->wait();
  mesh.shard->broadcast(tensor, 0, id)->wait();
}

}  // namespace

json text_of_rank0(const Exchange& exchange, const std::string& name, const ProcessMesh& mesh,
                   const std::function<json()>& make) {
  return json::parse(together(exchange, name, [&] { return mesh.is_first() ? make().dump() : ""; }).front());
}

json Rank0Tensors::describe(const TensorSource& source) {
  json text = json::object();
  for (const auto& [name, tensor] : source.tensors()) {
    text[name] = {formats::safetensors_dtype(tensor.dtype), tensor.sizes, tensor.strides};
  }
  return text;
}

Rank0Tensors::Rank0Tensors(std::shared_ptr<const TensorSource> own, const json& description, const ProcessMesh& mesh,
                           c10::Device device)
    : own_(std::move(own)), tensors_(described(description)), mesh_(mesh), device_(device) {}

std::map<std::string, SourceTensor> Rank0Tensors::described(const json& description) {
  std::map<std::string, SourceTensor> tensors;
  for (const auto& [name, tensor] : description.items()) {
    tensors[name] = {formats::dtype_from_safetensors(tensor.at(0).get<std::string>()).value(),
                     tensor.at(1).get<std::vector<int64_t>>(), tensor.at(2).get<std::vector<int64_t>>()};
  }
  return tensors;
}

bool Rank0Tensors::same_elements(const std::string& one, const std::string& other, const WantedElements& wanted) const {
  return !own_ || own_->same_elements(one, other, {0, tensors_.at(one).numel(), wanted.strides});
}

void Rank0Tensors::read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const {
  const SourceTensor& tensor = tensors_.at(name);
  if (tensor.numel() == 0) return;
  const at::Tensor whole = at::empty({tensor.numel()}, at::TensorOptions(tensor.dtype).device(device_));
  if (own_) own_->read(name, 0, tensor.numel(), whole);
  broadcast(whole, mesh_, {"load " + name, 0, Pass::kUser});
  if (begin < end) out.copy_(whole.narrow(0, begin, end - begin));
}

}  // namespace fsdp::state
