#include "planner/target/cluster_doc.h"

#include <c10/util/StringUtil.h>

#include "planner/target/cluster_keys.h"

namespace fsdp::planner {
namespace {

std::string default_of(const ClusterKey& key) {
  if (key.needed) return "needed";
  Cluster cluster;
  cluster.device.emplace();
  return "`" + key.get(cluster).dump() + "`";
}

}  // namespace

std::string cluster_markdown() {
  std::string table = "| Key | Default | Accepted | Meaning |\n| --- | --- | --- | --- |\n";
  for (const ClusterKey& key : cluster_keys()) {
    table += c10::str("| `", key.path, "` | ", default_of(key), " | ", key.accepted, " | ", key.meaning, " |\n");
  }
  return table;
}

}  // namespace fsdp::planner
