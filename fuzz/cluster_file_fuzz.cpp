// Reads the description of a cluster, for `fsdp plan`.
#include "planner/target/cluster_file.h"
#include "reader_check.h"

using namespace fsdp;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  static const std::string path = (folder / "cluster.json").string(), again = (folder / "again.json").string();
  folder.write("cluster.json", std::string(fuzz::text_of(data, size)));
  nlohmann::ordered_json whole;
  fuzz::check_reader(size, path, [&] { whole = planner::cluster_json(planner::read_cluster(path)); });
  if (!whole.empty()) {
    folder.write("again.json", whole.dump());
    fuzz::require(planner::cluster_json(planner::read_cluster(again)) == whole, "a whole cluster file reads back");
  }
  return 0;
}
