#include "planner/paper/paper_check.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "planner/report/text_row.h"

namespace fsdp::planner {

const char* to_string(Agreement agreement) {
  switch (agreement) {
    case Agreement::kAgrees:
      return "agrees";
    case Agreement::kDiffers:
      return "differs";
    case Agreement::kNotChecked:
      break;
  }
  return "not checked";
}

nlohmann::ordered_json check_json(const PaperCheck& check) {
  return {{"figure", check.figure},     {"what", check.what},       {"paper", check.paper},
          {"accepted", check.accepted}, {"planned", check.planned}, {"agreement", to_string(check.agreement)}};
}

std::string range_text(const std::vector<double>& values, int digits, const std::string& unit) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const std::string least = fixed_text(*low, digits), most = fixed_text(*high, digits);
  return (least == most ? least : least + " to " + most) + unit;
}

PaperCheck check_within(const std::string& figure, const std::string& what, const std::string& paper,
                        const AcceptedRange& range, const std::vector<double>& values) {
  const bool inside = std::all_of(values.begin(), values.end(),
                                  [&](double value) { return value >= range.low && value <= range.high; });
  return {.figure = figure,
          .what = what,
          .paper = paper,
          .accepted = fixed_text(range.low, range.digits) + " to " + fixed_text(range.high, range.digits) + range.unit,
          .planned = range_text(values, range.digits, range.unit),
          .agreement = inside ? Agreement::kAgrees : Agreement::kDiffers};
}

}  // namespace fsdp::planner
