#include "planner/pricing/host_price.h"

#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "config/config_names.h"
#include "planner/target/host_lists.h"

namespace fsdp::planner {
namespace {

constexpr const char* kCalibrateAgain = "measure this host again with `fsdp plan --calibrate FILE --nproc-per-node N`";

double as_double(int64_t value) { return static_cast<double>(value); }

double log_ratio(int64_t a, int64_t b) {
  return std::abs(std::log(as_double(std::max<int64_t>(a, 1)) / as_double(std::max<int64_t>(b, 1))));
}

// Returns how far apart the rates of two products are, in logarithms of sizes. More products at a time change a rate
// less than larger ones do. Another order of reading or a mask counts as much as a factor of 1.6, which is a guess.
double distance_of_rates(const ProductWork& a, const ProductWork& b) {
  constexpr double kBatch = 0.5;
  constexpr double kOtherOrder = 0.5;
  return kBatch * log_ratio(a.batch, b.batch) + log_ratio(a.m, b.m) + log_ratio(a.n, b.n) + log_ratio(a.k, b.k) +
         (a.across_rows != b.across_rows ? kOtherOrder : 0) + (a.causal != b.causal ? kOtherOrder : 0);
}

const OperatorCurve& curve_of(const std::string& name, at::ScalarType dtype, const HostSpeed& speed) {
  const OperatorCurve* others = nullptr;
  for (const OperatorCurve& curve : speed.operators) {
    if (curve.dtype != dtype) continue;
    if (curve.name == name) return curve;
    if (curve.name == kOtherOperators) others = &curve;
  }
  if (others == nullptr) {
    throw std::invalid_argument(c10::str("the cluster's file has neither ", name, " nor \"", kOtherOperators, "\" for ",
                                         trainer::config_name(dtype), " among \"cpu.operators\"; ", kCalibrateAgain));
  }
  return *others;
}

WorkKind work_kind(const ProductWork& work) {
  const bool attention = work.type == ProductType::kAttention || work.type == ProductType::kAttentionBackward;
  return attention ? WorkKind::kAttention : WorkKind::kMatrixProducts;
}

// Returns the curve of this kind and path of a group of the nearest size, or null. A host whose ranks cannot share
// memory has only times of Gloo.
const ExchangeCurve* nearest_exchange(comm::CollectiveKind kind, HostPath path, int ranks, const HostSpeed& speed) {
  const ExchangeCurve* nearest = nullptr;
  for (const ExchangeCurve& curve : speed.exchanges) {
    if (curve.kind != kind || curve.path != path) continue;
    if (nearest == nullptr || log_ratio(curve.ranks, ranks) < log_ratio(nearest->ranks, ranks)) nearest = &curve;
  }
  const bool shares_memory = std::any_of(speed.exchanges.begin(), speed.exchanges.end(),
                                         [](const ExchangeCurve& curve) { return curve.path != HostPath::kGloo; });
  if (nearest != nullptr || path == HostPath::kGloo || shares_memory) return nearest;
  return nearest_exchange(kind, HostPath::kGloo, ranks, speed);
}

// Each rank sends as much as in a gather of as many bytes in all.
comm::CollectiveKind like_measured(comm::CollectiveKind kind) {
  return kind == comm::CollectiveKind::kAllToAll ? comm::CollectiveKind::kAllGather : kind;
}

}  // namespace

double seconds_at(const TimeCurve& points, double bytes) {
  const auto above = std::find_if(points.begin(), points.end(), [&](const TimePoint& p) { return p.bytes >= bytes; });
  if (above == points.begin()) return above->seconds;
  if (above == points.end()) return points.back().seconds * bytes / std::max(points.back().bytes, 1.0);
  const TimePoint& below = *std::prev(above);
  if (below.bytes <= 0) return above->seconds;
  const double place = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.seconds * std::pow(above->seconds / below.seconds, place);
}

// Averages the logarithms of the rates of the nearest products, the nearer the more.
double seconds_of(const ProductWork& work, const HostSpeed& speed) {
  constexpr size_t kNearest = 3;
  constexpr double kSame = 0.05;                // so that a product that was measured counts for most
  std::vector<std::pair<double, double>> near;  // distance, logarithm of the rate
  for (const TimedProduct& product : speed.products) {
    if (product.work.type != work.type || product.work.dtype != work.dtype) continue;
    near.emplace_back(distance_of_rates(product.work, work), std::log(product.work.flops / product.seconds));
  }
  if (near.empty()) {
    throw std::invalid_argument(c10::str("the cluster's file has no product of this type (", name_of(work.type), ", ",
                                         trainer::config_name(work.dtype), ") among \"cpu.products\"; ",
                                         kCalibrateAgain));
  }
  const size_t count = std::min(kNearest, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end());
  double weights = 0, sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double weight = 1 / (kSame + near[i].first);
    weights += weight;
    sum += weight * near[i].second;
  }
  return work.flops / std::exp(sum / weights);
}

double seconds_of(const std::string& name, int64_t bytes, at::ScalarType dtype, const HostSpeed& speed) {
  return seconds_at(curve_of(name, dtype, speed).points, as_double(bytes));
}

KernelPrice price_on_host(const Tape& tape, const TapeEntry& entry, const HostSpeed& speed, at::ScalarType dtype) {
  if (entry.id >= 0) {
    const ProductWork& work = tape.products().at(static_cast<size_t>(entry.id));
    return {.seconds = seconds_of(work, speed), .kind = work_kind(work)};
  }
  return {.seconds = seconds_of(tape.name(entry), entry.bytes, dtype, speed), .kind = WorkKind::kMemoryBound};
}

double exchange_seconds(const Tape& tape, size_t collective, const HostSpeed& speed) {
  const TapeCollective& it = tape.collectives().at(collective);
  const bool is_message = it.kind == comm::CollectiveKind::kMessage;
  const int ranks = static_cast<int>(tape.groups().at(static_cast<size_t>(it.group)).size());
  if (ranks == 1) return 0;
  const ExchangeCurve* curve = nearest_exchange(like_measured(it.kind), it.path, ranks, speed);
  if (curve == nullptr) {
    throw std::invalid_argument(
        c10::str("the cluster's file has no time of an exchange among \"cpu.exchanges\": ", comm::to_string(it.kind),
                 " over ", name_of(it.path), ", ", ranks, " ranks; ", kCalibrateAgain));
  }
  const double bytes = as_double(it.numel) * as_double(static_cast<int64_t>(c10::elementSize(it.dtype)));
  const double seconds = seconds_at(curve->points, bytes);
  return is_message ? seconds / 2 : seconds * (ranks - 1) / std::max(curve->ranks - 1, 1);
}

}  // namespace fsdp::planner
