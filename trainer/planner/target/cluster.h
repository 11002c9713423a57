// The machines that a plan is for.
#pragma once

#include <optional>
#include <string>

#include "planner/target/device_profile.h"
#include "planner/time/device_speed.h"
#include "planner/time/link_speed.h"

namespace fsdp::planner {

struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  std::optional<DeviceProfile> device;  // of each rank; none: ranks compute on CPUs
  // Of `device`; without one, they have no meaning.
  DeviceSpeed speed;
  LinkSpeed links;
  // Seconds of the host thread for each kernel that it issues. A guess.
  double host_per_kernel = 5e-6;
  // The standard deviation of the ranks' computation, as a part of its time. A guess.
  double spread = 0.015;

  int ranks() const { return hosts * ranks_per_host; }
  // "64 hosts of 8 x NVIDIA A100, 80 GB"
  std::string text() const;
};

// Reads "8xh100" (one host), "64x8xa100-80" (hosts, ranks of each, device) or "4xcpu". Throws a ConfigError that says
// what is accepted.
Cluster parse_cluster(const std::string& name);

}  // namespace fsdp::planner
