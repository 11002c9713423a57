// The keys of cluster files in words, for docs/cluster.md.
#pragma once

#include <string>

namespace fsdp::planner {

// Returns a Markdown table of all keys of cluster_keys.h.
std::string cluster_markdown();

}  // namespace fsdp::planner
