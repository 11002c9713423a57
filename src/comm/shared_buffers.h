// The shared buffers of one group: which there are, and how their slices are shared.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/shared_buffer.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Those of one group that are alive.
class SharedBuffers {
 public:
  void add(const std::shared_ptr<SharedBuffer>& buffer);
  // The one of which the tensor is this rank's slice; of which it is the whole. Null: none.
  std::shared_ptr<SharedBuffer> of_slice(const at::Tensor& tensor);
  std::shared_ptr<SharedBuffer> of_whole(const at::Tensor& tensor);
  // Shares one. Collective; blocks; throws on all ranks, with the figures, where memory is wanting.
  static void share(const std::shared_ptr<SharedBuffer>& buffer, Communicator& group, const CollectiveId& id);
  // Shares all that are not shared yet; none where ranks have made different ones, which the gathers that share them
  // notice, or a check before them that knows more. See Communicator::share_buffers.
  void share_all(Communicator& group, int64_t further_nbytes, const CollectiveId& id);

 private:
  std::vector<std::shared_ptr<SharedBuffer>> not_shared() const;  // by number
  // The one with the largest address that is not above this one.
  std::shared_ptr<SharedBuffer> at_or_below(const void* address);

  using Buffers = std::map<const char*, std::weak_ptr<SharedBuffer>>;
  void forget_expired(Buffers::iterator begin, Buffers::iterator end);

  // By their addresses. No one that has expired lies inside another one; others stay until there are twice as many as
  // were alive when they were looked through last.
  Buffers buffers_;
  size_t alive_ = 0;
};

}  // namespace fsdp
