// Links of the machines in which the devices of default_speeds.h are sold.
#pragma once

#include <string>

#include "planner/time/link_speed.h"

namespace fsdp::planner {

// Returns the links of a node of `ranks` devices with this full name: NVLink of their generation and one NIC for each
// device, as in NVIDIA's DGX, or PCIe and one NIC for the node. Throws std::invalid_argument for an unknown name.
LinkSpeed default_links(const std::string& name, int ranks);

}  // namespace fsdp::planner
