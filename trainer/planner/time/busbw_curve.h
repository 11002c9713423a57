// Bandwidth between the points of a measured curve.
#pragma once

#include "planner/time/link_speed.h"

namespace fsdp::planner {

// Interpolates logarithms. Below the first point the time is constant, above the last one the bandwidth.
double busbw_at(const BusbwCurve& curve, double bytes);

// Returns the curve measured for exactly this collective, or null.
const BusbwCurve* find_curve(const LinkSpeed& links, CollectiveFunction function, const Topology& topology);

}  // namespace fsdp::planner
