// The device that a benchmark runs on, through LibTorch's interfaces for any device. Works with CPU and CUDA builds of
// LibTorch.
#pragma once

#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::benchmarks {

// Returns the device of this kind ("cpu" or "cuda") and index, and makes it the current one. Throws if it does not
// exist.
inline c10::Device use_device(const std::string& kind, int index = 0) {
  const c10::Device device(kind);
  if (device.is_cpu()) return device;
  TORCH_CHECK(at::accelerator::deviceCount() > index && at::accelerator::getAccelerator() == device.type(),
              "there is no device ", kind, ":", index,
              " for this LibTorch: a CUDA build of it needs a GPU and its driver");
  at::accelerator::setDeviceIndex(static_cast<c10::DeviceIndex>(index));
  return {device.type(), static_cast<c10::DeviceIndex>(index)};
}

// Waits until the device has finished all enqueued work.
inline void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

// The work of a device's caching allocator since begin(). There is no report for the CPU.
class AllocatorUse {
 public:
  struct Report {
    int64_t peak_allocated = 0;  // bytes of tensors alive at the same time
    int64_t peak_reserved = 0;   // bytes taken from the device
    int64_t retries = 0;         // how often the device was out of memory, so that the cache was released
    int64_t device_allocs = 0;   // calls of the device's own allocator (cudaMalloc)
  };

  explicit AllocatorUse(c10::Device device) : device_(device) {}

  void give_back_cache() {
    if (!device_.is_cpu()) at::accelerator::emptyCache();
  }
  void begin() {
    if (device_.is_cpu()) return;
    at::accelerator::resetPeakStats(device_.index());
    before_ = at::accelerator::getDeviceStats(device_.index());
  }
  std::optional<Report> report() const {
    if (device_.is_cpu()) return std::nullopt;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto now = at::accelerator::getDeviceStats(device_.index());
    return Report{now.allocated_bytes.at(kAll).peak, now.reserved_bytes.at(kAll).peak,
                  now.num_alloc_retries - before_.num_alloc_retries, now.num_device_alloc - before_.num_device_alloc};
  }

 private:
  c10::Device device_;
  c10::CachingDeviceAllocator::DeviceStats before_;
};

}  // namespace fsdp::benchmarks
