#include "planner/target/cluster_lists.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

#include "formats/common/json_text.h"
#include "planner/target/item_reader.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// By enumerator.
constexpr std::array kPrecisionNames = {"fp32", "tf32", "fp16", "bf16", "fp8"};
constexpr std::array kFunctionNames = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
constexpr std::array kProtocolNames = {"LL", "LL128", "Simple"};

constexpr int64_t kMostRanks = int64_t{1} << 26;

MeasuredMatmul read_product(ItemReader& item) {
  MeasuredMatmul product;
  if (item.has("batch")) product.shape.batch = item.count("batch", kMostElements);
  product.shape.m = item.count("m", kMostElements);
  product.shape.n = item.count("n", kMostElements);
  product.shape.k = item.count("k", kMostElements);
  product.shape.precision = static_cast<Precision>(item.name_of("precision", kPrecisionNames));
  product.shape.weight_gradient = item.flag("weight_gradient");
  product.efficiency = item.quantity(item.member("efficiency"), Unit::kNone);
  if (product.efficiency > 1) item.complain("has an item whose \"efficiency\" is above 1");
  return product;
}

ordered_json product_json(const MeasuredMatmul& product) {
  const MatmulShape& shape = product.shape;
  return {{"batch", shape.batch},
          {"m", shape.m},
          {"n", shape.n},
          {"k", shape.k},
          {"precision", kPrecisionNames.at(static_cast<size_t>(shape.precision))},
          {"weight_gradient", shape.weight_gradient},
          {"efficiency", product.efficiency}};
}

BusbwCurve read_curve(ItemReader& item) {
  BusbwCurve curve;
  curve.function = static_cast<CollectiveFunction>(item.name_of("collective", kFunctionNames));
  curve.ranks = static_cast<int>(item.count("ranks", kMostRanks));
  curve.nodes = static_cast<int>(item.count("hosts", kMostRanks));
  if (curve.ranks % curve.nodes != 0) item.complain("has a curve whose ranks are not spread evenly over its hosts");
  for (const auto& [bytes, busbw] : item.points("points", Unit::kBytesPerSecond)) {
    if (bytes == 0) item.complain("has a curve with a point of 0 bytes");
    curve.points.push_back({.bytes = bytes, .busbw = busbw});
  }
  return curve;
}

ordered_json curve_json(const BusbwCurve& curve) {
  ordered_json points = ordered_json::array();
  for (const BusbwPoint& point : curve.points) {
    points.push_back({quantity_json(point.bytes, Unit::kBytes), quantity_json(point.busbw, Unit::kBytesPerSecond)});
  }
  return {{"collective", kFunctionNames.at(static_cast<size_t>(curve.function))},
          {"ranks", curve.ranks},
          {"hosts", curve.nodes},
          {"points", points}};
}

std::string set_protocols(Cluster& cluster, const json& value) {
  if (!value.is_array() || value.empty()) return "is not a list of protocols";
  std::array<bool, 3> allowed = {};
  for (const json& name : value) {
    const auto found = std::find(kProtocolNames.begin(), kProtocolNames.end(), name);
    if (found == kProtocolNames.end()) return c10::str("has the unknown protocol ", formats::json_text(name));
    allowed.at(static_cast<size_t>(found - kProtocolNames.begin())) = true;
  }
  cluster.links.protocols = allowed;
  return "";
}

ordered_json protocols_json(const Cluster& cluster) {
  ordered_json names = ordered_json::array();
  for (size_t i = 0; i < kProtocolNames.size(); ++i) {
    if (cluster.links.protocols.at(i)) names.push_back(kProtocolNames.at(i));
  }
  return names;
}

}  // namespace

ClusterKey products_key(const std::string& path) {
  return {.path = path,
          .meaning = "Measured products; those near one of them take its efficiency.",
          .accepted =
              "a list of objects with m, n, k, precision (fp32, tf32, fp16, bf16 or fp8) and efficiency, and perhaps "
              "batch and weight_gradient",
          .usual = Provenance::kMeasured,
          .set =
              [](Cluster& cluster, const json& value) {
                return read_items(value, {"batch", "m", "n", "k", "precision", "weight_gradient", "efficiency"},
                                  cluster.speed.measured, read_product);
              },
          .get = [](const Cluster& cluster) { return items_json(cluster.speed.measured, product_json); }};
}

ClusterKey curves_key(const std::string& path) {
  return {.path = path,
          .meaning =
              "Measured bus bandwidths by size, as nccl-tests prints them. Each replaces NCCL's model for its own "
              "collective, ranks and hosts.",
          .accepted =
              "a list of objects with collective (all_gather, reduce_scatter, all_reduce or broadcast), ranks, "
              "hosts, and points [size, bandwidth] that ascend in size",
          .usual = Provenance::kMeasured,
          .set =
              [](Cluster& cluster, const json& value) {
                return read_items(value, {"collective", "ranks", "hosts", "points"}, cluster.links.curves, read_curve);
              },
          .get = [](const Cluster& cluster) { return items_json(cluster.links.curves, curve_json); }};
}

ClusterKey protocols_key(const std::string& path) {
  return {.path = path,
          .meaning = "The protocols that NCCL may take (LL128 needs a NIC near its device).",
          .accepted = "a list of LL, LL128, Simple",
          .set = set_protocols,
          .get = protocols_json};
}

ClusterKey trees_key(const std::string& path) {
  return {.path = path,
          .meaning = "Whether all-reduces across hosts may use trees.",
          .accepted = "true or false",
          .set = [](Cluster& cluster, const json& value) -> std::string {
            if (!value.is_boolean()) return "is not true or false";
            cluster.links.trees = value.get<bool>();
            return "";
          },
          .get = [](const Cluster& cluster) -> ordered_json { return cluster.links.trees; }};
}

}  // namespace fsdp::planner
