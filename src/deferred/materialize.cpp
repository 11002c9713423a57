#include "deferred/materialize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "deferred/deferred_storage.h"
#include "deferred/draw_sequence.h"
#include "deferred/replay.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp::deferred {
namespace {

std::vector<c10::Storage> replay_now(const std::vector<StorageState>& states) {
  base::MutexLock lock(replay_mutex);
  return replay(states);
}

}  // namespace

std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors) {
  seams::CleanDispatchGuard clean;
  std::vector<StorageState> states;
  for (const at::Tensor& tensor : tensors) {
    if (const DeferredStorage* storage = find(tensor); storage && !storage->resident) {
      states.push_back({storage->twin, storage->writer, storage->device});
    }
  }
  const std::vector<c10::Storage> memory = replay_now(states);
  std::vector<at::Tensor> values;
  auto next = memory.begin();
  for (const at::Tensor& tensor : tensors) {
    const DeferredStorage* storage = find(tensor);
    values.push_back(!storage            ? tensor
                     : storage->resident ? tensor_over(storage->memory, tensor)
                                         : tensor_over(*next++, tensor));
  }
  return values;
}

void replace_by_values(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> deferred;
  for (const at::Tensor& tensor : tensors) {
    if (find(tensor)) deferred.push_back(tensor);
  }
  make_resident(deferred);
  at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : deferred) {
    if (!find(tensor)) {
      continue;  // the list contains it twice
    }
    at::Tensor value = [&] {
      seams::CleanDispatchGuard clean;
      return tensor_over(find(tensor)->memory, tensor);
    }();
    c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
    seams::replace_data(tensor, value);
  }
}

void replace_by_memory(const at::Tensor& tensor, c10::Device device) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
  c10::Device place = tensor.is_meta() ? device : tensor.device();
  seams::replace_data(tensor, at::empty_strided(tensor.sizes(), tensor.strides(),
                                                at::TensorOptions(tensor.scalar_type()).device(place)));
}

bool has_no_values(const at::Tensor& tensor) { return tensor.is_meta() || find(tensor); }

void settle_generators() { DrawSequence::settle_all(); }

}  // namespace fsdp::deferred
