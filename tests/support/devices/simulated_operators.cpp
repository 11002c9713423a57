#include "support/devices/simulated_operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "support/devices/simulated_memory.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::testing {
namespace {

c10::Device device_or_current(std::optional<c10::Device> device) {
  return with_current_index(device.value_or(c10::Device(c10::kPrivateUse1)));
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  return empty_simulated(size, stride, c10::dtype_or_default(dtype), device_or_current(device));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return empty_simulated(size, format, c10::dtype_or_default(dtype), device_or_current(device));
}

// Enlarges a storage. Its contents are kept: they are copied when the stream reaches the copy.
void grow(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (nbytes <= impl.nbytes()) return;
  TORCH_CHECK(impl.resizable(), "Trying to resize storage that is not resizable");
  c10::DataPtr grown = allocate_simulated(nbytes, impl.device());
  if (impl.nbytes() > 0) {
    current_simulated_stream(impl.device())
        .enqueue([to = grown.get(), from = impl.mutable_data(), old = impl.nbytes()] { std::memcpy(to, from, old); });
  }
  impl.set_data_ptr_noswap(std::move(grown));
  impl.set_nbytes(nbytes);
}

size_t nbytes_needed(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          static_cast<size_t>(tensor.storage_offset()));
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (self.sizes() == size && !format) return self;
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  grow(self.storage(), nbytes_needed(self));
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
  grow(self.storage(), nbytes_needed(self));
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
  const at::Tensor nothing = empty_simulated({0}, {1}, self.scalar_type(), self.device());
  return set_storage_part(self, nothing.storage(), 0, {0}, {1});
}

// Makes work enqueued on `second` from now on wait for the work on `first`.
void order(SimulatedStream& first, SimulatedStream& second) {
  auto reached = std::make_shared<SimulatedEvent>();
  SimulatedEvent::record(reached, first);
  SimulatedEvent::block(reached, second);
}

// Reads and writes host memory when the stream reaches the copy, if that is allowed: the copy must be non_blocking and,
// if host memory is read, that memory must be pinned. Host memory is kept alive until then, as by the caching allocator
// of pinned memory.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  SimulatedStream& stream = current_simulated_stream(self.is_cpu() ? source.device() : self.device());
  HostViews views;
  at::Tensor to = self.is_cpu() ? self : views.of(self);
  at::Tensor from = source.is_cpu() ? source : views.of(source);
  if (source.is_cpu() && !(non_blocking && is_pinned_memory(source.const_data_ptr()))) {
    const seams::CleanDispatchGuard clean;
    from = source.clone();
  }
  const bool between_devices = !self.is_cpu() && !source.is_cpu() && self.device() != source.device();
  if (between_devices) order(current_simulated_stream(source.device()), stream);
  stream.enqueue([to, from] { to.copy_(from); });
  if (between_devices) order(stream, current_simulated_stream(source.device()));
  if (self.is_cpu() && !non_blocking) stream.synchronize();
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_use_on_stream(self.storage().data_ptr(), simulated_stream(stream));
}

// Module::to moves a parameter to another device by set_data. LibTorch allows this among its own devices, all of which
// have ordinary tensors.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  auto ordinary = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.device().type() == c10::kPrivateUse1);
  };
  return ordinary(self) && ordinary(from);
}

// Chooses the same attention implementation as on the CPU.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  const bool gradients = at::GradMode::is_enabled();
  const seams::CleanDispatchGuard clean;
  const at::AutoGradMode as_before(gradients);
  auto stand_in = [](const at::Tensor& tensor) {
    at::Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
    return made.set_requires_grad(tensor.requires_grad());
  };
  const auto host_mask = mask && mask->defined() ? std::optional(stand_in(*mask)) : std::nullopt;
  return at::_fused_sdp_choice(stand_in(query), stand_in(key), stand_in(value), host_mask, dropout, causal, scale,
                               grouped);
}

}  // namespace

void register_simulated_operators() {
  static torch::Library& kernels =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  kernels.impl("empty.memory_format", &empty);
  kernels.impl("empty_strided", &empty_strided);
  kernels.impl("as_strided", &at::native::as_strided_tensorimpl);
  kernels.impl("view", &at::native::view);
  kernels.impl("is_set_to", &at::native::is_set_to);
  kernels.impl("_reshape_alias", &at::native::_reshape_alias);
  kernels.impl("unfold", &at::native::unfold);
  kernels.impl("view_as_real", &at::native::view_as_real);
  kernels.impl("view_as_complex", &at::native::view_as_complex);
  kernels.impl("resize_", &resize);
  kernels.impl("set_.source_Storage_storage_offset", &set_storage_part);
  kernels.impl("set_.source_Storage", &set_storage);
  kernels.impl("set_.source_Tensor", &set_tensor);
  kernels.impl("set_", &set_nothing);
  kernels.impl("copy_", &copy);
  kernels.impl("record_stream", &record_stream);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose_attention);
  kernels.impl("_has_compatible_shallow_copy_type", &has_compatible_type);
}

}  // namespace fsdp::testing
