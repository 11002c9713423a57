#include "base/allocation_scope.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace fsdp::base {
namespace {

MappedFiles*& files_of_this_thread() {
  thread_local MappedFiles* files = nullptr;
  return files;
}

class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator& usual) : usual_(usual) {}

  c10::DataPtr allocate(size_t nbytes) override {
    MappedFiles* files = files_of_this_thread();
    return files && nbytes >= AllocationScope::kFromBytes ? files->allocate(nbytes) : usual_.allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return files_of_this_thread() ? nullptr : usual_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t nbytes) const override { usual_.copy_data(to, from, nbytes); }

 private:
  c10::Allocator& usual_;
};

// Never destroyed, because tensors may be created until the very end of the process.
ScopedAllocator& installed_allocator() {
  static ScopedAllocator* allocator = [] {
    auto* made = new ScopedAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(made);
    return made;
  }();
  return *allocator;
}

}  // namespace

AllocationScope::AllocationScope(const std::shared_ptr<MappedFiles>& files) {
  const c10::Allocator* ours = &installed_allocator();
  TORCH_CHECK(c10::GetCPUAllocator() == ours,
              "fsdp: offload_path: another allocator for host memory was installed (c10::SetCPUAllocator) after the "
              "first use of offload_path, so that optimizer state would not go to files");
  TORCH_CHECK(!files_of_this_thread(), "fsdp: scopes of offloaded memory cannot be nested");
  files_of_this_thread() = files.get();
}

AllocationScope::~AllocationScope() { files_of_this_thread() = nullptr; }

}  // namespace fsdp::base
