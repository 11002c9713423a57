#include "planner/paper/paper_document.h"

#include "planner/paper/bandwidth_figure.h"
#include "planner/paper/paper_figures.h"
#include "planner/paper/paper_volumes.h"
#include "planner/paper/run_checks.h"

namespace fsdp::planner {

nlohmann::ordered_json paper_document(const PaperPlans& plans) {
  const Cluster cluster = paper_cluster(2);
  nlohmann::ordered_json document = {{"cluster",
                                      {{"device", cluster.device->name},
                                       {"ranks_per_host", cluster.ranks_per_host},
                                       {"nics", cluster.links.nics},
                                       {"nic_bandwidth", cluster.links.nic}}},
                                     {"plans", plans.count()},
                                     {"checks", nlohmann::ordered_json::array()},
                                     {"volumes", nlohmann::ordered_json::array()},
                                     {"figures", nlohmann::ordered_json::array()}};
  for (const PaperCheck& check : bandwidth_checks(cluster)) document["checks"].push_back(check_json(check));
  for (const PaperCheck& check : run_checks(plans)) document["checks"].push_back(check_json(check));
  for (const PaperVolume& volume : paper_volumes(plans, volume_hosts()))
    document["volumes"].push_back(volume_json(volume));
  for (const PaperFigure& figure : paper_figures(plans)) document["figures"].push_back(figure_json(figure));
  return document;
}

}  // namespace fsdp::planner
