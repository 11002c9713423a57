#include "comm/collective_identities.h"

namespace fsdp::comm {

CollectiveIdentity identify(CollectiveKind kind, const CollectiveId& id, const at::Tensor& larger,
                            at::ScalarType output_dtype, double scale, const std::vector<uint64_t>* flags) {
  CollectiveIdentity identity;
  identity.kind = kind;
  identity.id = id;
  identity.numel = larger.numel();
  identity.dtype = larger.scalar_type();
  identity.output_dtype = output_dtype;
  identity.scale = scale;
  identity.flag_words = flags == nullptr ? 0 : static_cast<uint32_t>(flags->size());
  return identity;
}

CollectiveIdentity identify_broadcast(const at::Tensor& tensor, int root, const CollectiveId& id) {
  auto identity = identify(CollectiveKind::kBroadcast, id, tensor, tensor.scalar_type(), 1.0, nullptr);
  identity.root = root;
  return identity;
}

CollectiveIdentity identify_message(const at::Tensor& tensor, int from, int to, const CollectiveId& id) {
  auto identity = identify(CollectiveKind::kMessage, id, tensor, tensor.scalar_type(), 1.0, nullptr);
  identity.root = from;
  identity.receiver = to;
  identity.sizes = tensor.sizes().vec();
  return identity;
}

CollectiveIdentity identify_bytes(const std::string& bytes, const CollectiveId& id) {
  CollectiveIdentity identity;
  identity.kind = CollectiveKind::kGatherBytes;
  identity.id = id;
  identity.numel = static_cast<int64_t>(bytes.size());
  return identity;
}

}  // namespace fsdp::comm
