#include "planner/target/cluster_lists.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "config/edit_distance.h"
#include "formats/common/json_text.h"
#include "planner/target/name_index.h"
#include "planner/target/quantity.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// By enumerator.
constexpr std::array kPrecisionNames = {"fp32", "tf32", "fp16", "bf16", "fp8"};
constexpr std::array kFunctionNames = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"};
constexpr std::array kProtocolNames = {"LL", "LL128", "Simple"};

constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr int64_t kMostRanks = int64_t{1} << 26;

// Reads the members of one item of a list. The first complaint stays.
class ItemReader {
 public:
  ItemReader(const json& item, const std::vector<std::string>& members) : item_(item) {
    if (!item.is_object()) {
      complain("has the item " + formats::json_text(item) + ", which is not an object");
      return;
    }
    for (const auto& [name, value] : item.items()) {
      if (std::count(members.begin(), members.end(), name) > 0) continue;
      const std::optional<std::string> similar = trainer::similar_name(name.substr(0, 100), members);
      complain(c10::str("has an item with the unknown member ", formats::quoted_name(name),
                        similar ? "; the nearest known one is \"" + *similar + "\"" : ""));
    }
  }

  bool has(const char* name) const { return item_.is_object() && item_.contains(name); }
  int64_t count(const char* name, int64_t most) {
    const json value = member(name);
    const bool valid = value.is_number_integer() && value > 0 && value <= most;
    if (!valid) {
      complain(c10::str("has an item whose \"", name, "\" is ", formats::json_text(value),
                        "; it must be a whole number from 1 to ", most));
    }
    return valid ? value.get<int64_t>() : 1;
  }
  double quantity(const json& value, Unit unit) {
    const Quantity read = quantity_of(value, unit);
    if (!read.value) complain(c10::str("has the value ", formats::json_text(value), ", which ", read.complaint));
    if (read.value && !(*read.value > 0 && *read.value < 1e18))
      complain(c10::str("has the value ", formats::json_text(value), ", which is out of range"));
    return read.value.value_or(1);
  }
  template <size_t N>
  size_t name_of(const char* name, const std::array<const char*, N>& known) {
    const json value = member(name);
    if (const auto index = name_index(known, value)) return *index;
    complain(c10::str("has an item whose \"", name, "\" is ", formats::json_text(value), "; it must be ",
                      c10::Join(", ", known)));
    return 0;
  }
  json member(const char* name) {
    if (has(name)) return item_[name];
    complain(c10::str("has an item without \"", name, "\""));
    return nullptr;
  }
  void complain(const std::string& complaint) {
    if (complaint_.empty()) complaint_ = complaint;
  }
  const std::string& complaint() const { return complaint_; }

 private:
  const json& item_;
  std::string complaint_;
};

// Calls `read` for each item. Returns the first complaint.
template <typename Item>
std::string read_items(const json& value, const std::vector<std::string>& members, std::vector<Item>& items,
                       Item (*read)(ItemReader&)) {
  if (!value.is_array()) return "is not a list";
  std::vector<Item> found;
  for (const json& item : value) {
    ItemReader reader(item, members);
    if (reader.complaint().empty()) found.push_back(read(reader));
    if (!reader.complaint().empty()) return reader.complaint();
  }
  items = std::move(found);
  return "";
}

MeasuredMatmul read_product(ItemReader& item) {
  MeasuredMatmul product;
  if (item.has("batch")) product.shape.batch = item.count("batch", kMostElements);
  product.shape.m = item.count("m", kMostElements);
  product.shape.n = item.count("n", kMostElements);
  product.shape.k = item.count("k", kMostElements);
  product.shape.precision = static_cast<Precision>(item.name_of("precision", kPrecisionNames));
  if (item.has("weight_gradient")) {
    const json value = item.member("weight_gradient");
    if (!value.is_boolean()) item.complain("has an item whose \"weight_gradient\" is not true or false");
    product.shape.weight_gradient = value == true;
  }
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
  const json points = item.member("points");
  if (!points.is_array() || points.empty()) item.complain("has a curve without points");
  for (const json& point : points) {
    if (!point.is_array() || point.size() != 2) {
      item.complain(formats::json_text(point) + " is not a point [size, bus bandwidth]");
      return curve;
    }
    curve.points.push_back(
        {.bytes = item.quantity(point[0], Unit::kBytes), .busbw = item.quantity(point[1], Unit::kBytesPerSecond)});
    const size_t last = curve.points.size() - 1;
    if (last > 0 && curve.points[last].bytes <= curve.points[last - 1].bytes) {
      item.complain("has a curve whose points do not ascend in size");
    }
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
          .get =
              [](const Cluster& cluster) {
                ordered_json list = ordered_json::array();
                for (const MeasuredMatmul& product : cluster.speed.measured) list.push_back(product_json(product));
                return list;
              }};
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
          .get =
              [](const Cluster& cluster) {
                ordered_json list = ordered_json::array();
                for (const BusbwCurve& curve : cluster.links.curves) list.push_back(curve_json(curve));
                return list;
              }};
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
