// Makes the identities of collectives from their arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/collective_header.h"

namespace fsdp::comm {

// `flags` may be null.
CollectiveIdentity identify(CollectiveKind kind, const CollectiveId& id, const at::Tensor& larger,
                            at::ScalarType output_dtype, double scale, const std::vector<uint64_t>* flags);
CollectiveIdentity identify_broadcast(const at::Tensor& tensor, int root, const CollectiveId& id);
// `from`, `to`: the ranks as errors name them.
CollectiveIdentity identify_message(const at::Tensor& tensor, int from, int to, const CollectiveId& id);
CollectiveIdentity identify_bytes(const std::string& bytes, const CollectiveId& id);

}  // namespace fsdp::comm
