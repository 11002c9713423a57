#include "fsdp/communicator.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "fsdp/memory_sharing.h"

namespace fsdp {

at::Tensor MemorySharing::reduction_input(int64_t nbytes) { return at::empty({nbytes}, at::kByte); }

std::unique_ptr<Work> Communicator::all_gather_ranges(at::Tensor /*tensor*/, const RankRanges& /*ranges*/,
                                                      const CollectiveId& id) {
  TORCH_CHECK(false, "all-gather of '", id.name, "': a communicator over ", backend(),
              " gathers no ranges; ask gathers_ranges() first");
}

MemorySharing& Communicator::memory_sharing() {
  static MemorySharing none;  // has no state
  return none;
}

}  // namespace fsdp
