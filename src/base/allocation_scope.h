// Where LibTorch allocates host memory, changed for a while: optimizers make their state themselves.
#pragma once

#include <cstddef>
#include <memory>

#include "base/mapped_files.h"

namespace fsdp {

// From this size on, host tensors that this thread makes while the scope lasts lie in `files`; they may outlive it.
// Scopes do not nest. What LibTorch's own threads allocate is not concerned: its kernels do not allocate there.
//
// LibTorch's allocator for host memory is replaced once, when the first scope begins, by one that asks it for
// everything else. Throws when somebody has put another one in its place since.
class AllocationScope {
 public:
  static constexpr size_t kFromBytes = size_t{64} << 10;

  explicit AllocationScope(const std::shared_ptr<MappedFiles>& files);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
};

}  // namespace fsdp
