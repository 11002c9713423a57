// The keys of cluster files that hold measured times of CPUs.
#pragma once

#include <string>

#include "planner/target/cluster_keys.h"

namespace fsdp::planner {

// Return the names in files: "matrices", "gloo".
const char* name_of(ProductType type);
const char* name_of(HostPath path);

ClusterKey operators_key(const std::string& path);
ClusterKey host_products_key(const std::string& path);
ClusterKey exchanges_key(const std::string& path);

}  // namespace fsdp::planner
