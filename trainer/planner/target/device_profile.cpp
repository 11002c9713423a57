#include "planner/target/device_profile.h"

namespace fsdp::planner {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t gib(double value) { return static_cast<int64_t>(value * (int64_t{1} << 30)); }

// Four blocks of 2 MiB and eight of 16 KiB; 32 MiB from Hopper on.
constexpr int64_t kWorkspace = 2 * 4096 * 1024 + 8 * 16 * 1024;
constexpr int64_t kHopperWorkspace = 32 * kMiB;

}  // namespace

const std::vector<DeviceProfile>& device_profiles() {
  static const std::vector<DeviceProfile> profiles = {
      {.name = "a100-40", .title = "NVIDIA A100, 40 GB", .memory = gib(39.49), .matmul_workspace = kWorkspace},
      {.name = "a100-80", .title = "NVIDIA A100, 80 GB", .memory = gib(79.25), .matmul_workspace = kWorkspace},
      {.name = "h100-80",
       .title = "NVIDIA H100 SXM, 80 GB",
       .memory = gib(79.18),
       .matmul_workspace = kHopperWorkspace},
      {.name = "h100-96", .title = "NVIDIA H100, 96 GB", .memory = gib(94.50), .matmul_workspace = kHopperWorkspace},
      {.name = "h200", .title = "NVIDIA H200, 141 GB", .memory = gib(139.80), .matmul_workspace = kHopperWorkspace},
      {.name = "b200", .title = "NVIDIA B200, 180 GB", .memory = gib(178.35), .matmul_workspace = kHopperWorkspace},
      {.name = "gb200", .title = "NVIDIA GB200, 186 GB", .memory = gib(184.31), .matmul_workspace = kHopperWorkspace},
      {.name = "rtx4090",
       .title = "NVIDIA GeForce RTX 4090, 24 GB",
       .memory = gib(23.64),
       .matmul_workspace = kWorkspace},
  };
  return profiles;
}

const DeviceProfile* find_device_profile(const std::string& name) {
  for (const DeviceProfile& profile : device_profiles()) {
    if (profile.name == name || profile.name.rfind(name + "-", 0) == 0) return &profile;
  }
  return nullptr;
}

}  // namespace fsdp::planner
