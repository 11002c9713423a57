#include "torch_seams/self_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/version.h>

#include "torch_seams/dispatch_key.h"
#include "torch_seams/gradient_hooks.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/shard_version.h"
#include "torch_seams/write_watch.h"

namespace fsdp::seams {
namespace {

void require(bool works, const char* what) {
  TORCH_CHECK(works, "fsdp: this LibTorch (", TORCH_VERSION, ") does not behave as fsdp needs: ", what,
              ". fsdp is tested with 2.11 and 2.13");
}

bool reading_throws(const at::Tensor& tensor) {
  try {
    (void)tensor.storage().data();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

// The key is excluded here, because the check covers the seams and not the engine.
void check_storages(at::Tensor& leaf, float* memory) {
  auto owner = c10::make_intrusive<StorageOwner>(StorageOwner::Kind::kParameter, nullptr, 0);
  c10::Storage storage = make_empty_storage(owner, 4 * sizeof(float), c10::kCPU, "self-check");
  leaf.set_data(make_keyed_tensor(storage, at::kFloat, {2, 2}, {2, 1}));
  require(has_sharded_key(leaf) && storage_owner(leaf) == owner.get(), "set_data must carry the key and the storage");
  require(reading_throws(leaf), "an emptied storage must throw when read");
  fill_storage(*leaf.storage().unsafeGetStorageImpl(), owner, memory);
  require(leaf.const_data_ptr<float>() == memory, "a refilled storage must show its new memory");
  at::Tensor view = leaf.t();
  require(has_sharded_key(view) && storage_owner(view) == owner.get(), "views must inherit the key");
  empty_storage(*leaf.storage().unsafeGetStorageImpl(), owner);
  require(reading_throws(view), "views must see that their storage was emptied");
  fill_storage(*leaf.storage().unsafeGetStorageImpl(), owner, memory);
}

void check_hooks(const at::Tensor& leaf) {
  int captured = 0, tripped = 0;
  auto hook = add_gradient_capture(leaf, [&](const at::Tensor& gradient) { captured += gradient.defined(); });
  add_gradient_tripwire(leaf, [&] { ++tripped; });
  leaf.sum().backward();
  require(captured == 1 && tripped == 1 && !leaf.grad().defined(), "gradients must pass the capture hook");
}

void check_versions() {
  at::Tensor shard = at::zeros({4});
  at::Tensor leaf = make_versioned_leaf(shard.narrow(0, 1, 2));
  uint32_t before = version_of(shard);
  leaf.data().add_(1);
  require(version_of(shard) > before && shard[2].item<float>() == 1, "writes through .data() must be counted");
}

void check_write_watch() {
  if (!can_watch_writes()) return;
  at::Tensor shard = at::zeros({4});
  prepare_to_watch(shard);
  watch_writes(shard);
  require(shard.sum().item<float>() == 0 && !may_be_written(shard), "operators must read without a pointer to write");
  shard.view({2, 2}).select(0, 1).data().add_(1);
  require(may_be_written(shard), "a write must be noticed by the storage");
}

void run_self_check() {
  c10::InferenceMode no_inference(false);
  at::AutoGradMode gradients(true);
  c10::impl::ExcludeDispatchKeyGuard exclude(kShardedKey);
  float memory[4] = {1, 2, 3, 4};
  at::Tensor leaf = at::zeros({2, 2}).set_requires_grad(true);
  check_storages(leaf, memory);
  check_hooks(leaf);
  check_versions();
  check_write_watch();
  require(leaf.detach().sum().item<float>() == 10, "operators must read refilled storages");
}

}  // namespace

void self_check() {
  static const bool checked = (run_self_check(), true);
  (void)checked;
}

}  // namespace fsdp::seams
