// Host memory that shards are copied to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "state/pieces.h"

namespace fsdp::state {

class HostCopies {
 public:
  // Copies the pieces' values into this object's memory and makes the pieces refer to the copies. The memory lives as
  // long as this object or the copies. The next call uses it again, so the copies of the previous call must no longer
  // be in use. The memory is pinned if pieces are on a device. Waits for the device.
  void take(std::vector<Piece>& pieces);

 private:
  at::Tensor memory_;  // a tensor of bytes
};

}  // namespace fsdp::state
