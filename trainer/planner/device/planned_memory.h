// The memory of a plan: addresses on the device and on the host, and reports of what is allocated.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "planner/device/address_space.h"
#include "planner/device/device_log.h"
#include "planner/memory/caching_allocator.h"

namespace fsdp::planner {

// One for a process: LibTorch's allocators are global. Never destroyed. Thread-safe.
class PlannedMemory {
 public:
  static PlannedMemory& get();

  // Host memory from this size on has only an address. Less is real memory, because code reads such tensors: token
  // ids, states of generators, numbers.
  static constexpr size_t kRealHostBytes = 1 << 20;

  // Where reports go; null: nowhere. Events and kernels are reported under the same lock as memory.
  void set_log(DeviceLog* log);
  template <typename Report>
  void report(const Report& report) {
    std::lock_guard lock(mutex_);
    if (log_ != nullptr && quiet() == 0) report(*log_);
  }

  c10::DataPtr allocate(Place place, size_t nbytes, int stream);
  // Reports memory that no tensor stands for, and returns its id; reports its end.
  int64_t note_allocated(Place place, int64_t nbytes);
  void note_freed(int64_t id);
  // Whether the address is one of the plan's.
  bool is_planned(const void* address) const { return addresses_.contains(address); }
  bool is_pinned(const void* address) { return lies_in(Place::kPinnedHost, address); }
  // Whether the address lies in memory that was allocated in this place.
  bool lies_in(Place place, const void* address);

  // While one lives, nothing of this thread is reported.
  class Quiet {
   public:
    Quiet() { ++quiet(); }
    ~Quiet() { --quiet(); }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;
  };

  // While one lives, all host memory of this thread is real, for code that writes tensors without operators.
  class RealHostMemory {
   public:
    RealHostMemory() { ++real_host(); }
    ~RealHostMemory() { --real_host(); }
    RealHostMemory(const RealHostMemory&) = delete;
    RealHostMemory& operator=(const RealHostMemory&) = delete;
  };

  // While one lives, host memory that this thread allocates is shared by `ranks` ranks, each of which provides an equal
  // part.
  class SharedHostMemory {
   public:
    explicit SharedHostMemory(int ranks) { sharing_ranks() = ranks; }
    ~SharedHostMemory() { sharing_ranks() = 0; }
    SharedHostMemory(const SharedHostMemory&) = delete;
    SharedHostMemory& operator=(const SharedHostMemory&) = delete;
  };

  // Names the operator whose results this thread allocates while the object lives. `name` must stay valid.
  class Maker {
   public:
    explicit Maker(const char* name) { maker() = name; }
    ~Maker() { maker() = nullptr; }
    Maker(const Maker&) = delete;
    Maker& operator=(const Maker&) = delete;
  };

 private:
  struct Block {
    int64_t id;
    size_t nbytes;
    Place place;
    bool reported;
    c10::DataPtr real;  // null: an address without memory
  };

  PlannedMemory();
  static int& quiet();
  static const char*& maker();
  static int& real_host();
  static int& sharing_ranks();  // 0: memory is not shared
  static void free(void* address);
  void free_block(void* address);
  void report_allocated(int64_t id, Place place, int64_t nbytes, int stream, const void* address);
  CachingAllocator& addresses_of(Place place) { return place == Place::kDevice ? device_ : host_; }

  AddressSpace addresses_;
  c10::Allocator& real_;  // of the host
  std::mutex mutex_;
  DeviceLog* log_ = nullptr;
  CachingAllocator device_;
  CachingAllocator host_;
  std::map<void*, Block> blocks_;
  int64_t next_id_ = 0;
};

// The allocators that LibTorch calls.
c10::Allocator& planned_device_allocator();
c10::Allocator& planned_host_allocator();
c10::Allocator& planned_pinned_allocator();

}  // namespace fsdp::planner
