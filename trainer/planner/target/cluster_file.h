// Files that describe a cluster (docs/cluster.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "planner/target/cluster.h"

namespace fsdp::planner {

// Reads the value of --cluster: a file if it ends in ".json" or contains a slash, otherwise a name (parse_cluster).
// Throws a ConfigError that names the file, the key, the value and the accepted values.
Cluster read_cluster(const std::string& name_or_file);

// Like read_cluster, for the members of a file. `source`: its name in errors and in Cluster::text().
Cluster read_cluster(const nlohmann::json& file, const std::string& source);

// Returns a file with all numbers of the cluster. Reading it gives the same cluster.
nlohmann::ordered_json cluster_json(const Cluster& cluster);

}  // namespace fsdp::planner
