// The device that tests of training run on.
#pragma once

#include <c10/core/Device.h>

namespace fsdp::testing {

// [Note: the device of a test]
// Tests that make their models and batches with what is in this folder run on the CPU, and, with the environment
// variable FSDP_TEST_DEVICE, on another device: "cuda", or "simulated" (simulated_device.h). Each rank that run_ranks
// starts has one of its own there, as LibTorch runs the backward passes of one device one after the other: tests with
// more ranks than devices are skipped. References are computed on the first GPU, or on the CPU.

// That of this thread's rank; outside of ranks that of references.
c10::Device test_device();

// Whether there is one for each rank.
bool enough_devices(int ranks);

// Makes the device of a rank that of this thread.
void use_device_of_rank(int rank);

// For tests that choose the device themselves: while it lasts, devices of ranks are those of this kind.
enum class DeviceKind { kCpu, kCuda, kSimulated };
class DeviceKindGuard {
 public:
  explicit DeviceKindGuard(DeviceKind kind);
  ~DeviceKindGuard();
  DeviceKindGuard(const DeviceKindGuard&) = delete;
  DeviceKindGuard& operator=(const DeviceKindGuard&) = delete;

 private:
  DeviceKind before_;
};

}  // namespace fsdp::testing
