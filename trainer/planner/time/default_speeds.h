// Speeds of the devices that a plan knows by name (planner/target/device_profile.h).
#pragma once

#include <string>

#include "planner/time/device_speed.h"

namespace fsdp::planner {

// Returns the speed of a device by its full name ("h100-80"), or null.
const DeviceSpeed* find_device_speed(const std::string& name);

}  // namespace fsdp::planner
