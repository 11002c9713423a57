#include "planner/device/planned_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <utility>

#include "planner/device/planned_device.h"

namespace fsdp::planner {
namespace {

[[noreturn]] void refuse_copy() { TORCH_CHECK(false, "fsdp plan: memory that has only an address cannot be copied"); }

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(Place place) : place_(place) {}
  c10::DataPtr allocate(size_t nbytes) override { return PlannedMemory::get().allocate(place_, nbytes, -1); }
  void copy_data(void*, const void*, size_t) const override { refuse_copy(); }

 private:
  Place place_;
};

// Of the interface for devices, only what LibTorch and the engine call.
class OnDeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    return PlannedMemory::get().allocate(Place::kDevice, nbytes, current_stream_number());
  }
  void copy_data(void*, const void*, size_t) const override { refuse_copy(); }
};

}  // namespace

PlannedMemory& PlannedMemory::get() {
  static PlannedMemory& memory = *new PlannedMemory;
  return memory;
}

PlannedMemory::PlannedMemory()
    : real_(*c10::GetCPUAllocator()),
      device_({.base = addresses_.begin()}),
      host_({.base = addresses_.begin() + addresses_.nbytes() / 2}) {}

int& PlannedMemory::quiet() {
  thread_local int depth = 0;
  return depth;
}

const char*& PlannedMemory::maker() {
  thread_local const char* name = nullptr;
  return name;
}

int& PlannedMemory::real_host() {
  thread_local int depth = 0;
  return depth;
}

int& PlannedMemory::sharing_ranks() {
  thread_local int ranks = 0;
  return ranks;
}

void PlannedMemory::set_log(DeviceLog* log) {
  std::lock_guard lock(mutex_);
  log_ = log;
}

c10::DataPtr PlannedMemory::allocate(Place place, size_t nbytes, int stream) {
  const c10::Device device = place == Place::kDevice ? planned_device() : c10::Device(c10::kCPU);
  if (nbytes == 0) return {nullptr, device};
  if (place == Place::kHost && sharing_ranks() > 0) place = Place::kSharedHost;
  std::lock_guard lock(mutex_);
  Block block{.id = next_id_++, .nbytes = nbytes, .place = place, .reported = false, .real = {}};
  void* address;
  if (place != Place::kDevice && place != Place::kPinnedHost && (nbytes < kRealHostBytes || real_host() > 0)) {
    block.real = real_.allocate(nbytes);
    address = block.real.get();
  } else {
    address = reinterpret_cast<void*>(addresses_of(place).allocate(static_cast<int64_t>(nbytes), std::max(stream, 0)));
  }
  if (log_ != nullptr && quiet() == 0) {
    block.reported = true;
    const int parts = place == Place::kSharedHost ? sharing_ranks() : 1;
    report_allocated(block.id, place, static_cast<int64_t>(nbytes) / parts, stream, address);
  }
  blocks_.emplace(address, std::move(block));
  return {address, address, &PlannedMemory::free, device};
}

void PlannedMemory::report_allocated(int64_t id, Place place, int64_t nbytes, int stream, const void* address) {
  log_->allocated({.place = place,
                   .id = id,
                   .nbytes = nbytes,
                   .stream = stream,
                   .address = address,
                   .purpose = base::AllocationTag::current(),
                   .maker = maker()});
}

int64_t PlannedMemory::note_allocated(Place place, int64_t nbytes) {
  std::lock_guard lock(mutex_);
  const int64_t id = next_id_++;
  if (log_ != nullptr && quiet() == 0) report_allocated(id, place, nbytes, -1, nullptr);
  return id;
}

void PlannedMemory::note_freed(int64_t id) {
  std::lock_guard lock(mutex_);
  if (log_ != nullptr && quiet() == 0) log_->freed(id);
}

void PlannedMemory::free(void* address) { get().free_block(address); }

void PlannedMemory::free_block(void* address) {
  c10::DataPtr real;  // freed without the lock
  std::lock_guard lock(mutex_);
  auto block = blocks_.extract(address);
  TORCH_INTERNAL_ASSERT(!block.empty());
  real = std::move(block.mapped().real);
  if (!real) addresses_of(block.mapped().place).free(reinterpret_cast<uint64_t>(address));
  if (block.mapped().reported && log_ != nullptr) log_->freed(block.mapped().id);
}

bool PlannedMemory::lies_in(Place place, const void* address) {
  std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(const_cast<void*>(address));
  if (after == blocks_.begin()) return false;
  const auto& [begin, block] = *std::prev(after);
  return block.place == place && address < static_cast<const char*>(begin) + block.nbytes;
}

c10::Allocator& planned_device_allocator() {
  static c10::Allocator& allocator = *new OnDeviceAllocator;
  return allocator;
}

c10::Allocator& planned_host_allocator() {
  static c10::Allocator& allocator = *new HostAllocator(Place::kHost);
  return allocator;
}

c10::Allocator& planned_pinned_allocator() {
  static c10::Allocator& allocator = *new HostAllocator(Place::kPinnedHost);
  return allocator;
}

}  // namespace fsdp::planner
