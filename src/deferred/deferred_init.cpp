#include "fsdp/deferred_init.h"

#include "deferred/deferred_storage.h"
#include "deferred/materialize.h"
#include "deferred/recorder.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp {

DeferredInitGuard::DeferredInitGuard() : include_(seams::kShardedKey) {
  deferred::set_recording_depth(deferred::recording_depth() + 1);
}
DeferredInitGuard::~DeferredInitGuard() { deferred::set_recording_depth(deferred::recording_depth() - 1); }

EagerInitGuard::EagerInitGuard() : before_(deferred::recording_depth()), exclude_(seams::kShardedKey) {
  deferred::set_recording_depth(0);
}
EagerInitGuard::~EagerInitGuard() { deferred::set_recording_depth(before_); }

bool is_deferred(const at::TensorBase& tensor) { return deferred::find(tensor) != nullptr; }

void materialize(const std::vector<at::Tensor>& tensors) {
  deferred::replace_by_values(tensors);
  deferred::settle_generators();
}

void materialize(const at::Tensor& tensor) { materialize(std::vector<at::Tensor>{tensor}); }

void materialize(torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  materialize(tensors);
}

}  // namespace fsdp
