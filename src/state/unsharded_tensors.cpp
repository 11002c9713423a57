#include "state/unsharded_tensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "state/held_part.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::state {

NamedTensors named_buffers(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) tensors.emplace_back(buffer.key(), buffer.value());
  }
  return tensors;
}

NamedTensors ignored_parameters(const ShardedModule& model, const torch::nn::Module& module) {
  std::unordered_set<std::string> sharded;
  for (const HeldPart& part : held_parts(model)) sharded.insert(part.names.begin(), part.names.end());
  NamedTensors tensors;
  for (const auto& parameter : module.named_parameters()) {
    if (!parameter.value().defined() || sharded.erase(parameter.key()) > 0) continue;
    TORCH_CHECK(!seams::storage_owner(parameter.value()), "fsdp: '", parameter.key(),
                "' is sharded, but under another name: pass the module that fully_shard was called on last");
    tensors.emplace_back(parameter.key(), parameter.value());
  }
  TORCH_CHECK(sharded.empty(), "fsdp: the module has no parameter '", *std::min_element(sharded.begin(), sharded.end()),
              "', which is sharded: pass the module that fully_shard was called on last");
  return tensors;
}

NamedTensors unsharded_tensors(const ShardedModule& model, const torch::nn::Module& module) {
  NamedTensors tensors = named_buffers(module);
  for (auto& parameter : ignored_parameters(model, module)) tensors.push_back(std::move(parameter));
  return tensors;
}

std::vector<SharedTensor> by_tensor(const NamedTensors& tensors) {
  std::vector<SharedTensor> shared;
  std::unordered_map<const at::TensorImpl*, size_t> places;
  for (const auto& [name, value] : tensors) {
    const auto [place, is_new] = places.emplace(value.unsafeGetTensorImpl(), shared.size());
    if (is_new) shared.push_back({{}, value});
    shared[place->second].names.push_back(name);
  }
  return shared;
}

}  // namespace fsdp::state
