// The machines that a plan is for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/target/device_profile.h"
#include "planner/target/host_speed.h"
#include "planner/target/known_devices.h"
#include "planner/target/provenance.h"
#include "planner/time/device_speed.h"
#include "planner/time/link_speed.h"

namespace fsdp::planner {

struct Cluster {
  int hosts = 1;
  int ranks_per_host = 1;
  std::optional<DeviceProfile> device;       // of each rank; none: ranks compute on CPUs
  std::optional<int64_t> host_memory = {};   // bytes of one host, if known
  std::optional<HostSpeed> host_speed = {};  // of ranks that compute on CPUs, if it was measured
  // Of `device`; without one, they have no meaning.
  DeviceSpeed speed = {};
  LinkSpeed links = {};
  // Seconds of the host thread for each kernel that it issues; on CPUs, beside the kernel's own. A guess for devices.
  double host_per_kernel = 5e-6;
  // The standard deviation of the ranks' computation, as a part of its time. A guess for devices.
  double spread = 0.015;
  // Device memory of one communicator of NCCL. Guesses, between the reports of 0.35 and 0.7 GiB (NVIDIA/nccl issues 964
  // and 1685).
  int64_t communicator_on_host = int64_t{358} << 20;
  int64_t communicator_across_hosts = int64_t{716} << 20;
  Provenances provenances = {};
  std::string file = {};  // which describes it; empty: it has a name

  int ranks() const { return hosts * ranks_per_host; }
  // Whether plans for it have times.
  bool has_times() const { return device || host_speed; }
  // "64 hosts of 8 x NVIDIA A100, 80 GB", and the file in brackets
  std::string text() const;

  bool operator==(const Cluster&) const = default;
};

// Gives each rank this device, with the links of a host of ranks_per_host.
void use_device(const KnownDevice& known, Cluster& cluster);

// Reads a name: "8xh100" (one host), "64x8xa100-80" (hosts, ranks of each, device) or "4xcpu". Throws a ConfigError
// that says what is accepted.
Cluster parse_cluster(const std::string& name);

}  // namespace fsdp::planner
