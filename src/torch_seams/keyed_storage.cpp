#include "torch_seams/keyed_storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "torch_seams/dispatch_key.h"
#include "torch_seams/private_member.h"

namespace fsdp::seams {

struct ThrowFlag {
  using type = bool c10::StorageImpl::*;
  friend type private_member(ThrowFlag);
};
template struct PrivateMember<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

namespace {

void release_owner(void* context) { c10::intrusive_ptr<StorageOwner>::reclaim(static_cast<StorageOwner*>(context)); }

at::DataPtr data_ptr_of(const StorageOwnerPtr& owner, void* data, c10::Device device) {
  StorageOwnerPtr reference = owner;
  return at::DataPtr(data, reference.release(), &release_owner, device);
}

// set_data_ptr_noswap also refreshes the storage's summary of its flags, so the flag must be set first.
void set_pointer(c10::StorageImpl& storage, const StorageOwnerPtr& owner, void* data, bool throw_on_read) {
  storage.*private_member(ThrowFlag{}) = throw_on_read;
  storage.set_data_ptr_noswap(data_ptr_of(owner, data, storage.device()));
}

}  // namespace

c10::Storage make_empty_storage(const StorageOwnerPtr& owner, size_t nbytes, c10::Device device,
                                const std::string& message) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, data_ptr_of(owner, nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false);
  set_empty_message(*storage.unsafeGetStorageImpl(), message);
  return storage;
}

void fill_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner, void* data) {
  set_pointer(storage, owner, data, /*throw_on_read=*/false);
}

void empty_storage(c10::StorageImpl& storage, const StorageOwnerPtr& owner) {
  set_pointer(storage, owner, nullptr, /*throw_on_read=*/true);
}

void set_empty_message(c10::StorageImpl& storage, const std::string& message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

StorageOwner* storage_owner(const at::TensorBase& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &release_owner ? static_cast<StorageOwner*>(pointer.get_context()) : nullptr;
}

at::Tensor make_keyed_tensor(const c10::Storage& storage, at::ScalarType dtype, at::IntArrayRef sizes,
                             at::IntArrayRef strides, int64_t offset) {
  // The view constructor uses the given keys unchanged, so they are taken from a tensor that was created the ordinary
  // way, with the keys of autograd.
  at::Tensor ordinary = at::empty({0}, at::TensorOptions().dtype(dtype).device(storage.device()));
  c10::DispatchKeySet keys = ordinary.key_set();
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                         keys | c10::DispatchKeySet(kShardedKey),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void replace_data(const at::Tensor& tensor, const at::Tensor& view) {
  if (tensor.is_meta()) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
  } else {
    tensor.set_data(view);
  }
}

}  // namespace fsdp::seams
