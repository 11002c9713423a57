// The device that tests of training run on.
#pragma once

#include <c10/core/Device.h>

namespace fsdp::testing {

// [Note: the device of a test]
// Tests that create their models and batches with the helpers of this folder run on the CPU or, if the environment
// variable FSDP_TEST_DEVICE is set, on another device: "cuda", or "simulated" (simulated_device.h). Each rank that
// run_ranks starts has its own device there, because LibTorch runs the backward passes of one device one after the
// other; tests with more ranks than devices are skipped. References are computed on the first GPU, or on the CPU.

// Returns the device of this thread's rank; outside of ranks, the device of references.
c10::Device test_device();

// Whether each of `ranks` ranks can have its own device.
bool enough_devices(int ranks);

// Makes the device of `rank` the test device of this thread.
void use_device_of_rank(int rank);

// Sets the kind of the ranks' devices for a scope, for tests that choose the device themselves.
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
