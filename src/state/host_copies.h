// Host memory that shards are copied to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "state/pieces.h"

namespace fsdp {

class HostCopies {
 public:
  // Makes the pieces' values copies in this object's memory, which lives as long as it or they, and is used again by
  // the next call: those of the last one must be gone. Memory is pinned for pieces on a device. Waits for the device.
  void take(std::vector<Piece>& pieces);

 private:
  at::Tensor memory_;  // of bytes
};

}  // namespace fsdp
