#include "planner/device/matmul_workspaces.h"

#include "base/allocation_tag.h"
#include "planner/device/planned_device.h"
#include "planner/device/planned_memory.h"

namespace fsdp::planner {

MatmulWorkspaces& MatmulWorkspaces::get() {
  static MatmulWorkspaces& workspaces = *new MatmulWorkspaces;
  return workspaces;
}

void MatmulWorkspaces::reset(int64_t nbytes) {
  std::lock_guard lock(mutex_);
  workspaces_.clear();
  nbytes_ = nbytes;
}

void MatmulWorkspaces::prepare() {
  std::lock_guard lock(mutex_);
  if (nbytes_ == 0) return;
  c10::DataPtr& workspace = workspaces_[{std::this_thread::get_id(), current_stream_number()}];
  if (workspace) return;
  const base::AllocationTag tag(base::AllocationPurpose::kOther);
  const PlannedMemory::Maker maker("cuBLAS");
  workspace = planned_device_allocator().allocate(static_cast<size_t>(nbytes_));
}

}  // namespace fsdp::planner
