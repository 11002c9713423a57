#include "planner/search/front.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace fsdp::planner {

namespace {

// Equal for speeds that differ by less than the tolerance, unless a step lies between them.
double speed_step(double speed, const FrontTolerance& tolerance) {
  if (tolerance.speed <= 0 || speed <= 0) return speed;
  return std::floor(std::log(speed) / std::log1p(tolerance.speed));
}

// The place of a point in the order in which the front is made.
auto place_of(const FrontPoint& point, const FrontTolerance& tolerance) {
  return std::tuple(-speed_step(point.speed, tolerance), point.device / std::max<int64_t>(1, tolerance.device),
                    point.host / std::max<int64_t>(1, tolerance.host), point.changes, point.device, point.host);
}

}  // namespace

bool is_beaten(const FrontPoint& point, const std::vector<FrontPoint>& front, const FrontTolerance& tolerance) {
  return std::any_of(front.begin(), front.end(), [&](const FrontPoint& other) {
    return speed_step(other.speed, tolerance) >= speed_step(point.speed, tolerance) &&
           other.device <= point.device + tolerance.device && other.host <= point.host + tolerance.host;
  });
}

std::vector<size_t> pareto_front(const std::vector<FrontPoint>& points, const FrontTolerance& tolerance) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return place_of(points[left], tolerance) < place_of(points[right], tolerance);
  });
  // Without tolerance, whatever beats a point comes before it in this order.
  std::vector<size_t> indices;
  std::vector<FrontPoint> front;
  for (const size_t index : order) {
    if (is_beaten(points[index], front, tolerance)) continue;
    indices.push_back(index);
    front.push_back(points[index]);
  }
  return indices;
}

}  // namespace fsdp::planner
