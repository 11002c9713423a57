#include "planner/time/busbw_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fsdp::planner {

double busbw_at(const BusbwCurve& curve, double bytes) {
  const std::vector<BusbwPoint>& points = curve.points;
  if (bytes <= points.front().bytes) return points.front().busbw * bytes / points.front().bytes;
  const auto upper = std::lower_bound(points.begin(), points.end(), bytes,
                                      [](const BusbwPoint& point, double value) { return point.bytes < value; });
  if (upper == points.end()) return points.back().busbw;
  const BusbwPoint& lower = *(upper - 1);
  const double part = std::log(bytes / lower.bytes) / std::log(upper->bytes / lower.bytes);
  return lower.busbw * std::pow(upper->busbw / lower.busbw, part);
}

const BusbwCurve* find_curve(const LinkSpeed& links, CollectiveFunction function, const Topology& topology) {
  // NICs shared with other groups were not part of any measurement.
  if (topology.groups_per_node != 1) return nullptr;
  for (const BusbwCurve& curve : links.curves) {
    const bool matches = curve.function == function && curve.ranks == topology.ranks && curve.nodes == topology.nodes;
    if (matches && !curve.points.empty()) return &curve;
  }
  return nullptr;
}

}  // namespace fsdp::planner
