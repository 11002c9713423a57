// The memory of a device.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::planner {

// Bytes.
struct DeviceProfile {
  std::string name;   // "h100-80"
  std::string title;  // "NVIDIA H100 SXM, 80 GB"
  // The total that CUDA reports, as errors of running out of memory quote it.
  int64_t memory = 0;
  // Taken by a process before it allocates anything: the context and loaded kernels. A guess.
  int64_t context = int64_t{1} << 29;
  // The workspace of cuBLAS, allocated once for each stream that multiplies and never freed
  // (at::cuda::getChosenWorkspaceSize).
  int64_t matmul_workspace = 0;

  bool operator==(const DeviceProfile&) const = default;
};

}  // namespace fsdp::planner
