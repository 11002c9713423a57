// A scope that changes where LibTorch allocates host memory, for optimizers that allocate their state themselves.
#pragma once

#include <cstddef>
#include <memory>

#include "base/mapped_files.h"

namespace fsdp::base {

// While the scope lasts, host tensors of at least kFromBytes that this thread creates lie in `files`; they may outlive
// the scope. Scopes do not nest. Allocations by LibTorch's own threads are not affected: its kernels do not allocate
// there.
//
// LibTorch's allocator for host memory is replaced once, when the first scope begins, by one that forwards all other
// requests to it. Throws if another allocator has been installed since then.
class AllocationScope {
 public:
  static constexpr size_t kFromBytes = size_t{64} << 10;

  explicit AllocationScope(const std::shared_ptr<MappedFiles>& files);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
};

}  // namespace fsdp::base
