// The keys of cluster files that are no single numbers: curves, products, protocols.
#pragma once

#include <string>

#include "planner/target/cluster_keys.h"

namespace fsdp::planner {

ClusterKey products_key(const std::string& path);
ClusterKey curves_key(const std::string& path);
ClusterKey protocols_key(const std::string& path);
ClusterKey trees_key(const std::string& path);

}  // namespace fsdp::planner
