// The devices that a plan knows by name. Each is one entry.
#pragma once

#include <string>
#include <vector>

#include "planner/target/device_profile.h"
#include "planner/time/device_speed.h"
#include "planner/time/link_speed.h"

namespace fsdp::planner {

struct KnownDevice {
  DeviceProfile profile;
  DeviceSpeed speed;
  LinkSpeed links;  // of a machine in which the device is sold; see host_links
  // Whether a host has a NIC for each device, as NVIDIA's DGX; otherwise links.nics counts those of a host.
  bool nic_for_each = true;
  // Paths of numbers (cluster_keys.h) that are guesses for this device, but measured or specified for most.
  std::vector<std::string> guesses = {};
  // Paths of numbers that were chosen so that plans agree with measured runs.
  std::vector<std::string> calibrated = {};

  // Returns the links of a host with `ranks` such devices.
  LinkSpeed host_links(int ranks) const;
};

const std::vector<KnownDevice>& known_devices();

// Returns the device of this name, or null. A name without a size means the smallest of its family: "h100" is
// "h100-80".
const KnownDevice* find_known_device(const std::string& name);

}  // namespace fsdp::planner
