#include "planner/device/memory_kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "planner/device/kept_library.h"
#include "planner/device/planned_memory.h"

namespace fsdp::planner {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &planned_device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &planned_device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

void grow(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (nbytes <= impl.nbytes()) return;
  TORCH_CHECK(impl.resizable(), "Trying to resize storage that is not resizable");
  impl.set_data_ptr_noswap(impl.allocator()->allocate(nbytes));
  impl.set_nbytes(nbytes);
}

void grow_for(const at::Tensor& tensor) {
  grow(tensor.storage(), at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                          static_cast<size_t>(tensor.storage_offset())));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (self.sizes() == size && !format) return self;
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  grow_for(self);
  return self;
}

at::Tensor& set_storage_part(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                             at::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\"");
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr) {
    impl.set_storage_offset(offset);
    impl.set_sizes_contiguous(size);
  } else {
    impl.set_sizes_and_strides(size, stride, offset);
  }
  grow_for(self);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_part(self, std::move(source), 0, {numel}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage_part(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const at::Tensor nothing = at::detail::empty_generic({0}, &planned_device_allocator(), kKeys, self.scalar_type(), {});
  return set_storage_part(self, nothing.storage(), 0, {0}, {1});
}

// Module::to moves a parameter to another device by set_data. LibTorch allows this among its own devices, all of which
// have ordinary tensors.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  const auto ordinary = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.device().type() == c10::kPrivateUse1);
  };
  return ordinary(self) && ordinary(from);
}

}  // namespace

void register_memory_kernels() {
  torch::Library& device = kept_library("aten", c10::DispatchKey::PrivateUse1);
  device.impl("empty.memory_format", &empty);
  device.impl("empty_strided", &empty_strided);
  device.impl("as_strided", &at::native::as_strided_tensorimpl);
  device.impl("view", &at::native::view);
  device.impl("is_set_to", &at::native::is_set_to);
  device.impl("_reshape_alias", &at::native::_reshape_alias);
  device.impl("unfold", &at::native::unfold);
  device.impl("view_as_real", &at::native::view_as_real);
  device.impl("view_as_complex", &at::native::view_as_complex);
  device.impl("resize_", &resize);
  device.impl("set_.source_Storage_storage_offset", &set_storage_part);
  device.impl("set_.source_Storage", &set_storage);
  device.impl("set_.source_Tensor", &set_tensor);
  device.impl("set_", &set_nothing);
  device.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
  kept_library("aten", c10::DispatchKey::CPU).impl("resize_", &resize);
}

}  // namespace fsdp::planner
