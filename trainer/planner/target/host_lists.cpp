#include "planner/target/host_lists.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "config/config_names.h"
#include "formats/common/json_text.h"
#include "planner/target/item_reader.h"

namespace fsdp::planner {
namespace {

using comm::CollectiveKind;
using nlohmann::json;
using nlohmann::ordered_json;

// By enumerator.
constexpr std::array kProductNames = {"matrices", "convolution", "convolution_backward", "attention",
                                      "attention_backward"};
constexpr std::array kPathNames = {"gloo", "memory", "in_place"};
// Of the collectives that can be measured.
constexpr std::array kExchangeNames = {"all_gather", "reduce_scatter",   "all_reduce",
                                       "broadcast",  "all_gather_bytes", "message"};
constexpr std::array kExchangeKinds = {CollectiveKind::kAllGather,   CollectiveKind::kReduceScatter,
                                       CollectiveKind::kAllReduce,   CollectiveKind::kBroadcast,
                                       CollectiveKind::kGatherBytes, CollectiveKind::kMessage};
constexpr int64_t kMostRanksOfHost = 1024;

at::ScalarType read_type(ItemReader& item) {
  const auto& types = trainer::ConfigNames<at::ScalarType>::kTable;
  return types.at(item.name_of("dtype", trainer::config_names<at::ScalarType>())).first;
}

TimeCurve read_points(ItemReader& item) {
  TimeCurve curve;
  for (const auto& [bytes, seconds] : item.points("points", Unit::kSeconds)) {
    curve.push_back({.bytes = bytes, .seconds = seconds});
  }
  return curve;
}

ordered_json points_json(const TimeCurve& curve) {
  ordered_json points = ordered_json::array();
  for (const TimePoint& point : curve) {
    points.push_back({quantity_json(point.bytes, Unit::kBytes), quantity_json(point.seconds, Unit::kSeconds)});
  }
  return points;
}

OperatorCurve read_operator(ItemReader& item) {
  OperatorCurve curve;
  const json name = item.member("name");
  if (!name.is_string() || name.get<std::string>().empty()) {
    item.complain("has an item whose \"name\" is " + formats::json_text(name) + ", which names no operator");
  } else {
    curve.name = name.get<std::string>();
  }
  curve.dtype = read_type(item);
  curve.points = read_points(item);
  return curve;
}

ordered_json operator_json(const OperatorCurve& curve) {
  return {{"name", curve.name}, {"dtype", trainer::config_name(curve.dtype)}, {"points", points_json(curve.points)}};
}

TimedProduct read_timed_product(ItemReader& item) {
  TimedProduct product;
  product.work.type = static_cast<ProductType>(item.name_of("product", kProductNames));
  product.work.dtype = read_type(item);
  product.work.batch = item.count("batch", kMostElements);
  product.work.m = item.count("m", kMostElements);
  product.work.n = item.count("n", kMostElements);
  product.work.k = item.count("k", kMostElements);
  product.work.across_rows = item.flag("weight_gradient");
  product.work.causal = item.flag("causal");
  product.work.flops = item.quantity(item.member("flops"), Unit::kNone);
  product.seconds = item.quantity(item.member("seconds"), Unit::kSeconds);
  return product;
}

ordered_json timed_product_json(const TimedProduct& product) {
  const ProductWork& work = product.work;
  ordered_json item = {{"product", name_of(work.type)},
                       {"dtype", trainer::config_name(work.dtype)},
                       {"batch", work.batch},
                       {"m", work.m},
                       {"n", work.n},
                       {"k", work.k}};
  if (work.across_rows) item["weight_gradient"] = true;
  if (work.causal) item["causal"] = true;
  item["flops"] = work.flops;
  item["seconds"] = quantity_json(product.seconds, Unit::kSeconds);
  return item;
}

ExchangeCurve read_exchange(ItemReader& item) {
  ExchangeCurve curve;
  curve.kind = kExchangeKinds.at(item.name_of("collective", kExchangeNames));
  curve.path = static_cast<HostPath>(item.name_of("path", kPathNames));
  curve.ranks = static_cast<int>(item.count("ranks", kMostRanksOfHost));
  curve.points = read_points(item);
  return curve;
}

ordered_json exchange_json(const ExchangeCurve& curve) {
  const auto kind = std::find(kExchangeKinds.begin(), kExchangeKinds.end(), curve.kind) - kExchangeKinds.begin();
  return {{"collective", kExchangeNames.at(static_cast<size_t>(kind))},
          {"path", name_of(curve.path)},
          {"ranks", curve.ranks},
          {"points", points_json(curve.points)}};
}

std::string set_operators(Cluster& cluster, const json& value) {
  std::vector<OperatorCurve>& curves = cluster.host_speed->operators;
  const std::string complaint = read_items(value, {"name", "dtype", "points"}, curves, read_operator);
  if (!complaint.empty()) return complaint;
  for (const OperatorCurve& curve : curves) {
    const bool has_others = std::any_of(curves.begin(), curves.end(), [&](const OperatorCurve& other) {
      return other.dtype == curve.dtype && other.name == kOtherOperators;
    });
    if (!has_others) return c10::str("has no item \"", kOtherOperators, "\" for ", trainer::config_name(curve.dtype));
  }
  return curves.empty() ? "is empty" : "";
}

}  // namespace

const char* name_of(ProductType type) { return kProductNames.at(static_cast<size_t>(type)); }
const char* name_of(HostPath path) { return kPathNames.at(static_cast<size_t>(path)); }

ClusterKey operators_key(const std::string& path) {
  return {.path = path,
          .meaning =
              "Times of operators by the bytes that they read and write, in models that compute in dtype; `others` is "
              "for those without a curve.",
          .accepted = "a list of objects with name, dtype, and points [bytes, seconds] that ascend in bytes",
          .needed = true,
          .usual = Provenance::kMeasured,
          .set = set_operators,
          .get = [](const Cluster& cluster) { return items_json(cluster.host_speed->operators, operator_json); }};
}

ClusterKey host_products_key(const std::string& path) {
  return {.path = path,
          .meaning = "Times of matrix products, convolutions and attention; others take the rate of the nearest ones.",
          .accepted =
              "a list of objects with product (matrices, convolution, convolution_backward, attention or "
              "attention_backward), dtype, batch, m, n, k, flops and seconds, and perhaps weight_gradient and causal",
          .needed = true,
          .usual = Provenance::kMeasured,
          .set =
              [](Cluster& cluster, const json& value) {
                return read_items(
                    value,
                    {"product", "dtype", "batch", "m", "n", "k", "weight_gradient", "causal", "flops", "seconds"},
                    cluster.host_speed->products, read_timed_product);
              },
          .get = [](const Cluster& cluster) { return items_json(cluster.host_speed->products, timed_product_json); }};
}

ClusterKey exchanges_key(const std::string& path) {
  return {.path = path,
          .meaning =
              "Times of collectives by the bytes of their larger tensor, or of all_gather_bytes those of each rank, "
              "while all ranks of the host run them; of a message, the time in which a rank sends one to another and "
              "receives one from it (only plans of pipelines need it).",
          .accepted =
              "a list of objects with collective (all_gather, reduce_scatter, all_reduce, broadcast, "
              "all_gather_bytes or message), path (gloo, memory or in_place), ranks, and points [bytes, seconds] that "
              "ascend in "
              "bytes",
          .needed = true,
          .usual = Provenance::kMeasured,
          .set =
              [](Cluster& cluster, const json& value) {
                return read_items(value, {"collective", "path", "ranks", "points"}, cluster.host_speed->exchanges,
                                  read_exchange);
              },
          .get = [](const Cluster& cluster) { return items_json(cluster.host_speed->exchanges, exchange_json); }};
}

}  // namespace fsdp::planner
