// The shared buffers of one group: finds them by address and shares their slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/shm/shared_buffer.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// The shared buffers of one group that are alive.
class SharedBuffers {
 public:
  void add(const std::shared_ptr<SharedBuffer>& buffer);
  // Returns the buffer of which the tensor is this rank's slice, or of which it is the whole; null if there is none.
  std::shared_ptr<SharedBuffer> of_slice(const at::Tensor& tensor);
  std::shared_ptr<SharedBuffer> of_whole(const at::Tensor& tensor);
  // Shares one buffer. Collective; blocks. Throws on all ranks, with the figures, if there is too little memory.
  static void share(const std::shared_ptr<SharedBuffer>& buffer, Communicator& group, const CollectiveId& id);
  // Shares all buffers that are not shared yet. Shares none if ranks have made different ones; the gathers that share
  // them detect this, or an earlier check that knows more. See MemorySharing::share.
  void share_all(Communicator& group, int64_t further_nbytes, const CollectiveId& id);

 private:
  std::vector<std::shared_ptr<SharedBuffer>> not_shared() const;  // by number
  // Returns the buffer with the largest address that is not above `address`.
  std::shared_ptr<SharedBuffer> at_or_below(const void* address);

  using Buffers = std::map<const char*, std::weak_ptr<SharedBuffer>>;
  void clear_expired(Buffers::iterator begin, Buffers::iterator end);

  // By address. No expired buffer lies inside another one. Other expired buffers stay until there are twice as many
  // entries as were alive at the last cleanup.
  Buffers buffers_;
  size_t alive_ = 0;
};

}  // namespace fsdp::comm
