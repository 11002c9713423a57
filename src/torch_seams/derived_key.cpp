#include "torch_seams/derived_key.h"

#include <c10/core/TensorImpl.h>

#include "torch_seams/private_member.h"

namespace fsdp::seams {

struct KeySet {
  using type = c10::DispatchKeySet c10::TensorImpl::*;
  friend type private_member(KeySet);
};
template struct PrivateMember<KeySet, &c10::TensorImpl::key_set_>;

void add_derived_key(const at::TensorBase& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*private_member(KeySet{});
  keys = keys | c10::DispatchKeySet(kDerivedKey);
}

}  // namespace fsdp::seams
