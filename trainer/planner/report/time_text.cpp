#include "planner/report/time_text.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "planner/report/plan_tables.h"
#include "planner/report/text_row.h"
#include "report_page/page_text.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

// "1.234 s", "56.7 ms", "8.9 us"
std::string seconds_text(const ordered_json& value) {
  const auto seconds = value.get<double>();
  if (seconds >= 1) return fixed_text(seconds, 3) + " s";
  if (seconds >= 1e-3 || seconds == 0) return fixed_text(seconds * 1e3, 1) + " ms";
  return fixed_text(seconds * 1e6, 1) + " us";
}

// Groups of three digits, and a fraction of small numbers: "1,234,567", "3.4".
std::string rate_text(double value) {
  if (value < 100) return fixed_text(value, 1);
  return grouped_digits(std::llrint(value));
}

std::string part_row(int indent, const std::string& name, const ordered_json& seconds, double step) {
  const double percent = step > 0 ? 100 * seconds.get<double>() / step : 0;
  std::ostringstream share;
  share << std::setw(3) << fixed_text(percent, 0) << " %";
  return row(indent, name, seconds_text(seconds), share.str());
}

std::string step_rows(const ordered_json& time) {
  const auto step = time.at("step_seconds").get<double>();
  std::string text = part_row(2, "computation", time.at("compute_seconds"), step);
  for (const auto& [kind, seconds] : time.at("by_kind").items()) text += part_row(4, kind, seconds, step);
  constexpr std::array<std::pair<const char*, const char*>, 4> kParts = {{
      {"exposed communication", "exposed_communication_seconds"},
      {"waiting for the host", "host_bound_seconds"},
      {"spread of the ranks", "spread_seconds"},
      {"idle", "idle_seconds"},
  }};
  for (const auto& [name, key] : kParts) text += part_row(2, name, time.at(key), step);
  return text + row(2, "step", seconds_text(time.at("step_seconds")), time.at("marks").at("step_seconds").at("mark"));
}

std::string rate_rows(const ordered_json& time) {
  const std::string unit = time.contains("tokens_per_second") ? "tokens" : "samples";
  const auto all = time.at(unit + "_per_second").get<double>();
  const auto one = time.at(unit + "_per_second_per_device").get<double>();
  const bool has_device = time.contains("mfu");
  const int digits = has_device ? 1 : 3;
  const std::string place = has_device ? "device" : "rank";
  std::string text = row(2, unit + " per second", rate_text(all), rate_text(one) + " for each " + place);
  const std::string utilization =
      has_device ? fixed_text(100 * time["mfu"].get<double>(), 1) + " % of its peak; " : std::string();
  text += row(2, "TFLOP/s of a " + place, fixed_text(time.at("tflops_per_device").get<double>(), digits),
              utilization + "attention counts in full");
  if (time.contains("hardware_tflops_per_device")) {
    text += row(2, "  with recomputation", fixed_text(time["hardware_tflops_per_device"].get<double>(), digits));
  }
  return text;
}

std::string collective_row(const ordered_json& sum) {
  const auto ranks = sum.at("ranks").get<int>(), hosts = sum.at("hosts").get<int>();
  const std::string group = hosts > 1 ? c10::str(ranks, " ranks, ", hosts, " hosts") : c10::str(ranks, " ranks");
  return row(2, c10::str(sum.at("count").get<int64_t>(), " x ", sum.at("kind").get<std::string>(), ", ", group),
             seconds_text(sum.at("seconds")),
             trainer::bytes_text(sum.at("sent_bytes").get<double>()) + " sent by each rank");
}

std::string collective_rows(const ordered_json& time) {
  std::string text = "\ncollectives of a step\n";
  for (const ordered_json& sum : time.at("collectives")) text += collective_row(sum);
  return text;
}

}  // namespace

std::string time_text(const ordered_json& time, int last_step) {
  std::string text = c10::str("\ntime of a step (step ", last_step, ", as all later ones)\n");
  text += step_rows(time) + rate_rows(time);
  return time.at("collectives").empty() ? text : text + collective_rows(time);
}

}  // namespace fsdp::planner
