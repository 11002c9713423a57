#include "torch_seams/shard_version.h"

#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {
namespace {

// A tensor whose shallow copies share its version counter, regardless of the counter that is passed for them.
class VersionedImpl final : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion&,
                                                         bool allow_metadata_change) const override {
    return c10::TensorImpl::shallow_copy_and_detach(version_counter(), allow_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&&,
                                                         bool allow_metadata_change) const override {
    return c10::TensorImpl::shallow_copy_and_detach(version_counter(), allow_metadata_change);
  }
  void take_keys(c10::DispatchKeySet keys) { key_set_ = keys; }
};

}  // namespace

at::Tensor make_versioned_leaf(const at::Tensor& part) {
  auto leaf = at::detail::make_tensor<VersionedImpl>(c10::TensorImpl::VIEW, c10::Storage(part.storage()),
                                                     part.key_set(), part.dtype());
  leaf.unsafeGetTensorImpl()->set_sizes_and_strides(part.sizes(), part.strides(), part.storage_offset());
  leaf.unsafeGetTensorImpl()->set_version_counter(part.unsafeGetTensorImpl()->version_counter());
  return leaf;
}

void move_versioned_leaf(const at::Tensor& leaf, const at::Tensor& part) {
  c10::TensorImpl* impl = leaf.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(part.storage());
  impl->set_sizes_and_strides(part.sizes(), part.strides(), part.storage_offset());
  impl->set_version_counter(part.unsafeGetTensorImpl()->version_counter());
  static_cast<VersionedImpl*>(impl)->take_keys(part.key_set());
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

void bump_version(const at::Tensor& tensor) { torch::autograd::impl::bump_version(tensor); }

}  // namespace fsdp::seams
