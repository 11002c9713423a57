// The candidates that no other one beats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::planner {

struct FrontPoint {
  double speed = 0;    // the more the better
  int64_t device = 0;  // bytes; the fewer the better
  int64_t host = 0;
  size_t changes = 0;  // of the config; decides between points of one speed whose memories are about equal
};

// Differences that are not worth a row of their own.
struct FrontTolerance {
  double speed = 0;  // a part of the speed
  int64_t device = 0;
  int64_t host = 0;
};

// Returns the indices of the Pareto front, the fastest first. A point is left out if one on the front is at least as
// fast and needs at most the tolerance more of either memory; of equal points the first stays. Speeds are rounded to
// steps of their tolerance before. Without tolerance, these are the points that no other one dominates.
std::vector<size_t> pareto_front(const std::vector<FrontPoint>& points, const FrontTolerance& tolerance);

// Whether the front beats this point.
bool is_beaten(const FrontPoint& point, const std::vector<FrontPoint>& front, const FrontTolerance& tolerance);

}  // namespace fsdp::planner
