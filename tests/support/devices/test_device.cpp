#include "support/devices/test_device.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/device_stream.h"
#include "support/devices/simulated_device.h"

namespace fsdp::testing {
namespace {

DeviceKind kind_of_environment() {
  const char* text = std::getenv("FSDP_TEST_DEVICE");
  const std::string name = text ? text : "cpu";
  TORCH_CHECK(name == "cpu" || name == "cuda" || name == "simulated", "FSDP_TEST_DEVICE is '", name,
              "'; it may be cpu, cuda or simulated");
  return name == "cpu" ? DeviceKind::kCpu : name == "cuda" ? DeviceKind::kCuda : DeviceKind::kSimulated;
}

DeviceKind& present_kind() {
  static DeviceKind kind = kind_of_environment();
  return kind;
}

std::optional<int>& rank_of_this_thread() {
  thread_local std::optional<int> rank;
  return rank;
}

}  // namespace

c10::Device test_device() {
  const int rank = rank_of_this_thread().value_or(0);
  switch (present_kind()) {
    case DeviceKind::kCuda:
      return {c10::kCUDA, static_cast<c10::DeviceIndex>(rank)};
    case DeviceKind::kSimulated:
      return rank_of_this_thread() ? simulated_device(rank) : c10::Device(c10::kCPU);
    case DeviceKind::kCpu:
      break;
  }
  return c10::kCPU;
}

bool enough_devices(int ranks) {
  switch (present_kind()) {
    case DeviceKind::kCuda:
      return ranks <= base::device_count(c10::kCUDA);
    case DeviceKind::kSimulated:
      return ranks <= kSimulatedDevices;
    case DeviceKind::kCpu:
      break;
  }
  return true;
}

void use_device_of_rank(int rank) { rank_of_this_thread() = rank; }

DeviceKindGuard::DeviceKindGuard(DeviceKind kind) : before_(present_kind()) { present_kind() = kind; }
DeviceKindGuard::~DeviceKindGuard() { present_kind() = before_; }

}  // namespace fsdp::testing
