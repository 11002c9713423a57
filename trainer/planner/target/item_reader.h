// Reads lists of objects in cluster files.
#pragma once

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/edit_distance.h"
#include "formats/common/json_text.h"
#include "planner/target/name_index.h"
#include "planner/target/quantity.h"

namespace fsdp::planner {

// The largest size of a tensor's dimension.
inline constexpr int64_t kMostElements = int64_t{1} << 40;

// Reads the members of one item of a list. The first complaint stays.
class ItemReader {
 public:
  ItemReader(const nlohmann::json& item, const std::vector<std::string>& members) : item_(item) {
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
    const nlohmann::json value = member(name);
    const bool valid = value.is_number_integer() && value > 0 && value <= most;
    if (!valid) {
      complain(c10::str("has an item whose \"", name, "\" is ", formats::json_text(value),
                        "; it must be a whole number from 1 to ", most));
    }
    return valid ? value.get<int64_t>() : 1;
  }
  double quantity(const nlohmann::json& value, Unit unit) {
    const Quantity read = quantity_of(value, unit);
    if (!read.value) complain(c10::str("has the value ", formats::json_text(value), ", which ", read.complaint));
    if (read.value && !(*read.value > 0 && *read.value < 1e18))
      complain(c10::str("has the value ", formats::json_text(value), ", which is out of range"));
    return read.value.value_or(1);
  }
  // Returns false if it is not there.
  bool flag(const char* name) {
    if (!has(name)) return false;
    const nlohmann::json value = member(name);
    if (!value.is_boolean()) complain(c10::str("has an item whose \"", name, "\" is not true or false"));
    return value == true;
  }
  template <typename Names>
  size_t name_of(const char* name, const Names& known) {
    const nlohmann::json value = member(name);
    if (const auto index = name_index(known, value)) return *index;
    complain(c10::str("has an item whose \"", name, "\" is ", formats::json_text(value), "; it must be ",
                      c10::Join(", ", known)));
    return 0;
  }
  // Pairs whose first numbers, which may be 0, ascend: [bytes, a quantity in `unit`].
  std::vector<std::pair<double, double>> points(const char* name, Unit unit) {
    const nlohmann::json list = member(name);
    if (!list.is_array() || list.empty()) complain("has a curve without points");
    std::vector<std::pair<double, double>> read;
    for (const nlohmann::json& point : list) {
      if (!point.is_array() || point.size() != 2) {
        complain(formats::json_text(point) + " is not a point of two numbers");
        return read;
      }
      const double bytes = point[0] == 0 ? 0 : quantity(point[0], Unit::kBytes);
      if (!read.empty() && bytes <= read.back().first) complain("has a curve whose points do not ascend in size");
      read.emplace_back(bytes, quantity(point[1], unit));
    }
    return read;
  }
  nlohmann::json member(const char* name) {
    if (has(name)) return item_[name];
    complain(c10::str("has an item without \"", name, "\""));
    return nullptr;
  }
  void complain(const std::string& complaint) {
    if (complaint_.empty()) complaint_ = complaint;
  }
  const std::string& complaint() const { return complaint_; }

 private:
  const nlohmann::json& item_;
  std::string complaint_;
};

// Calls `read` for each item. Returns the first complaint.
template <typename Item>
std::string read_items(const nlohmann::json& value, const std::vector<std::string>& members, std::vector<Item>& items,
                       Item (*read)(ItemReader&)) {
  if (!value.is_array()) return "is not a list";
  std::vector<Item> found;
  for (const nlohmann::json& item : value) {
    ItemReader reader(item, members);
    if (reader.complaint().empty()) found.push_back(read(reader));
    if (!reader.complaint().empty()) return reader.complaint();
  }
  items = std::move(found);
  return "";
}

// Returns the list of the results of `item_json`.
template <typename Item>
nlohmann::ordered_json items_json(const std::vector<Item>& items, nlohmann::ordered_json (*item_json)(const Item&)) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Item& item : items) list.push_back(item_json(item));
  return list;
}

}  // namespace fsdp::planner
