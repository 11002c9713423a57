#include "planner/report/units_document.h"

#include <c10/util/Exception.h>

#include <cctype>
#include <cstdint>
#include <regex>
#include <sstream>

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

int64_t element_bytes(const std::string& dtype) {
  if (dtype == "Double") return 8;
  if (dtype == "Float") return 4;
  if (dtype == "Half" || dtype == "BFloat16") return 2;
  TORCH_CHECK(false, "no size is known for the dtype ", dtype, " of a unit");
}

// "FULL_SHARD" is "full_shard" in configs, and "_HYBRID_SHARD_ZERO2" is "hybrid_shard_zero2".
std::string strategy_in_configs(std::string name) {
  if (name.front() == '_') name.erase(0, 1);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

// A line of a FlatParameter: "  trainable Float (gathered in BFloat16): 15 elements, padding 1, shard 4 x 4".
void add_flat(const std::smatch& line, ordered_json& unit) {
  const int64_t shard = std::stoll(line[4]), factor = std::stoll(line[5]);
  const std::string dtype = line[1], gathered = line[2].matched ? line[2].str() : dtype;
  unit["parameters"] = unit["parameters"].get<int64_t>() + std::stoll(line[3]);
  unit["shard_bytes"] = unit["shard_bytes"].get<int64_t>() + shard * element_bytes(dtype);
  unit["gathered_bytes"] = unit["gathered_bytes"].get<int64_t>() + shard * factor * element_bytes(gathered);
}

}  // namespace

ordered_json units_document(const std::string& description) {
  static const std::regex unit("unit '(.*)' (\\w+).*");
  static const std::regex flat(
      "  (?:trainable|frozen) (\\w+)(?: \\(gathered in (\\w+)\\))?: (\\d+) elements, padding \\d+, shard (\\d+) x "
      "(\\d+)");
  ordered_json units = ordered_json::array();
  std::istringstream lines(description);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, unit)) {
      units.push_back({{"name", match[1].str()},
                       {"strategy", strategy_in_configs(match[2])},
                       {"parameters", 0},
                       {"shard_bytes", 0},
                       {"gathered_bytes", 0}});
    } else if (!units.empty() && std::regex_match(line, match, flat)) {
      add_flat(match, units.back());
    }
  }
  return units;
}

}  // namespace fsdp::planner
