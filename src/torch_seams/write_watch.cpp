#include "torch_seams/write_watch.h"

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

namespace fsdp::seams {
namespace {

// Marks the storages of shards. A storage asks its allocator for memory only when it is resized.
class ShardMark final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t) override { TORCH_CHECK(false, "fsdp: the memory of a shard cannot be resized"); }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "fsdp: the memory of a shard cannot be resized");
  }
};

ShardMark mark;

c10::StorageImpl& storage_of(const at::TensorBase& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

// LibTorch clears the hook when it has called it, and that alone is of interest.
[[maybe_unused]] void note_nothing(c10::StorageImpl*) {}

template <typename Storage>
concept HasHook = requires(Storage& storage) { storage.set_materializer(&note_nothing); };

// Templates, so that they compile where storages have no hook.
template <typename Storage>
bool has_hook(const Storage& storage) {
  if constexpr (HasHook<Storage>) return storage.has_materializer();
  return true;
}

template <typename Storage>
void set_hook(Storage& storage) {
  if constexpr (HasHook<Storage>) storage.set_materializer(&note_nothing);
}

template <typename Storage>
void clear_hook(Storage& storage) {
  if constexpr (HasHook<Storage>) storage.clear_materializer();
}

}  // namespace

bool can_watch_writes() { return HasHook<c10::StorageImpl>; }

void prepare_to_watch(const at::TensorBase& shard) {
  c10::StorageImpl& storage = storage_of(shard);
  storage.set_allocator(&mark);
  storage.set_resizable(true);  // numpy() sets it to false
}

// An exported shard gets no hook any more.
void watch_writes(const at::TensorBase& shard) {
  if (!has_hook(storage_of(shard)) && !is_exported(shard)) set_hook(storage_of(shard));
}

bool may_be_written(const at::TensorBase& shard) { return !has_hook(storage_of(shard)); }

// Tensor.share_memory_() gives the storage other memory and with it another allocator.
bool is_exported(const at::TensorBase& shard) {
  c10::StorageImpl& storage = storage_of(shard);
  return !storage.resizable() || storage.allocator() != &mark;
}

void note_export(const at::TensorBase& tensor) {
  if (!tensor.has_storage() || storage_of(tensor).allocator() != &mark) return;
  storage_of(tensor).set_resizable(false);
  clear_hook(storage_of(tensor));
}

}  // namespace fsdp::seams
