#include "planner/ranks/planned_sharing.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <iterator>
#include <optional>

#include "base/allocation_tag.h"
#include "planner/device/planned_memory.h"

namespace fsdp::planner {

using base::AllocationPurpose;
using base::AllocationTag;

at::Tensor PlannedSharing::buffer(int64_t nbytes, const SharedBufferOptions& options, const CollectiveId&) {
  at::Tensor bytes;
  if (options.transient) {
    const PlannedMemory::Quiet addresses_only;
    bytes = at::empty({nbytes}, at::kByte);
  } else {
    const AllocationTag tag(AllocationPurpose::kShards);
    const PlannedMemory::SharedHostMemory memory(ranks_);
    bytes = at::empty({nbytes}, at::kByte);
  }
  buffers_[static_cast<const char*>(bytes.const_data_ptr())] =
      std::make_shared<Buffer>(bytes, nbytes / ranks_, options.transient);
  return bytes;
}

void PlannedSharing::await_readers(const at::Tensor& buffer, const CollectiveId&) {
  const std::shared_ptr<Buffer> found = find(buffer);
  TORCH_INTERNAL_ASSERT(found);
  found->written();
}

at::Tensor PlannedSharing::reduction_input(int64_t nbytes) {
  // Pools name their purpose; gradients of shards that are captured in place do not.
  std::optional<AllocationTag> tag;
  if (AllocationTag::current() == AllocationPurpose::kOther) tag.emplace(AllocationPurpose::kGradientShards);
  const PlannedMemory::SharedHostMemory memory(1);
  return at::empty({nbytes}, at::kByte);
}

std::shared_ptr<PlannedSharing::Buffer> PlannedSharing::find(const at::Tensor& tensor) const {
  const char* address = static_cast<const char*>(tensor.const_data_ptr());
  const auto above = buffers_.upper_bound(address);
  if (above == buffers_.begin()) return nullptr;
  const auto& [begin, buffer] = *std::prev(above);
  return buffer->exists() && address < begin + buffer->nbytes() ? buffer : nullptr;
}

void PlannedSharing::Buffer::written() {
  if (!transient_ || memory_ >= 0) return;
  const AllocationTag tag(AllocationPurpose::kUnshardedParameters);
  memory_ = PlannedMemory::get().note_allocated(Place::kSharedHost, own_nbytes_);
}

void PlannedSharing::Buffer::read() {
  if (memory_ < 0) return;
  PlannedMemory::get().note_freed(memory_);
  memory_ = -1;
}

}  // namespace fsdp::planner
