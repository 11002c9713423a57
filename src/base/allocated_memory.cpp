#include "base/allocated_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

namespace fsdp::base {

namespace {

std::optional<int64_t> host_bytes() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#else
  return std::nullopt;
#endif
}

std::optional<c10::CachingAllocator::Stat> device_bytes(c10::Device device) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator || !allocator->initialized()) return std::nullopt;
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index()).allocated_bytes[kAll];
}

}  // namespace

std::optional<int64_t> allocated_bytes(c10::Device device) {
  if (device.is_cpu()) return host_bytes();
  const auto bytes = device_bytes(device);
  return bytes ? std::optional(bytes->current) : std::nullopt;
}

std::optional<int64_t> peak_allocated_bytes(c10::Device device) {
  const auto bytes = device.is_cpu() ? std::nullopt : device_bytes(device);
  return bytes ? std::optional(bytes->peak) : std::nullopt;
}

}  // namespace fsdp::base
