// The speed of the CPUs of a host, measured while all of its ranks do the same (calibration/calibrate.h). Bytes,
// seconds.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>
#include <vector>

#include "comm/collective_shapes.h"
#include "planner/tape/host_path.h"
#include "planner/tape/product_work.h"

namespace fsdp::planner {

struct TimePoint {
  double bytes = 0;
  double seconds = 0;

  bool operator==(const TimePoint&) const = default;
};

// By bytes, which ascend. There is at least one point.
using TimeCurve = std::vector<TimePoint>;

// The name of the curve of operators that have none of their own.
inline constexpr const char* kOtherOperators = "others";

// The time of an operator by KernelTraffic::bytes, in models that compute in `dtype`: some of their tensors have
// others.
struct OperatorCurve {
  std::string name;  // "aten::add.Tensor", as on tapes
  at::ScalarType dtype = at::kFloat;
  TimeCurve points = {};

  bool operator==(const OperatorCurve&) const = default;
};

struct TimedProduct {
  ProductWork work;
  double seconds = 0;

  bool operator==(const TimedProduct&) const = default;
};

// The time of a collective by the bytes of its larger tensor, from its issue to the end of the wait. Of a message: the
// time in which a rank sends one to another and receives one from it.
struct ExchangeCurve {
  comm::CollectiveKind kind = comm::CollectiveKind::kAllGather;
  HostPath path = HostPath::kGloo;
  int ranks = 0;  // of the group; all groups of this size of the host are busy at the same time
  TimeCurve points = {};

  bool operator==(const ExchangeCurve&) const = default;
};

struct HostSpeed {
  int threads = 1;                            // of each rank
  std::vector<OperatorCurve> operators = {};  // for each dtype, one of them is for kOtherOperators
  std::vector<TimedProduct> products = {};
  std::vector<ExchangeCurve> exchanges = {};  // none: the host has one rank

  // Whether models that compute in this dtype were measured.
  bool knows(at::ScalarType dtype) const {
    return std::any_of(operators.begin(), operators.end(), [&](const auto& curve) { return curve.dtype == dtype; });
  }

  bool operator==(const HostSpeed&) const = default;
};

}  // namespace fsdp::planner
