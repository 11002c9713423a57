#include "deferred/deferred_storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "deferred/replay.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp::deferred {
namespace {

std::atomic<int64_t> live = 0;

constexpr const char* kMessage =
    "fsdp: the memory of a deferred tensor was read (data_ptr, an accessor, printing, a C library): it has none until "
    "fully_shard or materialize. Build large tables with operators, or under an EagerInitGuard";

c10::Storage make_twin(size_t nbytes) {
  seams::CleanDispatchGuard clean;
  return at::empty({static_cast<int64_t>(nbytes)}, at::TensorOptions(at::kByte).device(at::kMeta)).storage();
}

at::Tensor keyed(const c10::Storage& storage, const at::Tensor& shape) {
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
  return seams::make_keyed_tensor(storage, shape.scalar_type(), shape.sizes(), shape.strides(), shape.storage_offset());
}

seams::StorageOwnerPtr owner_of(DeferredStorage& storage) {
  return seams::StorageOwnerPtr::reclaim_copy(static_cast<seams::StorageOwner*>(&storage));
}

c10::StorageImpl& impl_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

DeferredStorage::DeferredStorage(size_t nbytes, c10::Device device_)
    : StorageOwner(Kind::kDeferred, nullptr, 0), twin(make_twin(nbytes)), device(device_) {
  ++live;
}

DeferredStorage::~DeferredStorage() { --live; }

int64_t live_storages() { return live; }

DeferredStorage* find(const at::TensorBase& tensor) {
  seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == seams::StorageOwner::Kind::kDeferred ? static_cast<DeferredStorage*>(owner) : nullptr;
}

at::Tensor make_deferred(const at::Tensor& shape, c10::Device device) {
  size_t nbytes = shape.storage().nbytes();
  auto owner = c10::make_intrusive<DeferredStorage>(nbytes, device);
  return keyed(seams::make_empty_storage(owner, nbytes, device, kMessage), shape);
}

at::Tensor make_view(const at::Tensor& deferred, const at::Tensor& shape) { return keyed(deferred.storage(), shape); }

at::Tensor twin_of(const at::Tensor& deferred) {
  seams::CleanDispatchGuard clean;
  return tensor_over(find(deferred)->twin, deferred);
}

void make_resident(const at::Tensor& deferred, c10::Storage memory) {
  DeferredStorage& storage = *find(deferred);
  storage.memory = std::move(memory);
  storage.writer.reset();
  storage.resident = true;
  seams::fill_storage(impl_of(deferred), owner_of(storage), storage.memory.mutable_data());
}

void make_resident(const std::vector<at::Tensor>& deferred) {
  base::MutexLock lock(replay_mutex);
  std::vector<at::Tensor> recorded;
  for (const at::Tensor& tensor : deferred) {
    bool known = std::any_of(recorded.begin(), recorded.end(),
                             [&](const at::Tensor& other) { return find(other) == find(tensor); });
    if (!find(tensor)->resident && !known) recorded.push_back(tensor);
  }
  std::vector<StorageState> states;
  for (const at::Tensor& tensor : recorded) {
    const DeferredStorage& storage = *find(tensor);
    states.push_back({storage.twin, storage.writer, storage.device});
  }
  std::vector<c10::Storage> memory = replay(states);
  for (size_t i = 0; i < recorded.size(); ++i) make_resident(recorded[i], memory[i]);
}

void make_recorded(const at::Tensor& deferred, OperatorPtr writer) {
  DeferredStorage& storage = *find(deferred);
  storage.writer = std::move(writer);
  if (storage.resident) {
    storage.resident = false;
    seams::empty_storage(impl_of(deferred), owner_of(storage));
    seams::set_empty_message(impl_of(deferred), kMessage);
  }
}

}  // namespace fsdp::deferred
