#include <algorithm>

#include "planner/paper/paper_document.h"
#include "planner/report/plan_tables.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ordered_json& object, const char* key) { return object.at(key).get<std::string>(); }

int count_of(const ordered_json& checks, const char* agreement) {
  return static_cast<int>(std::count_if(checks.begin(), checks.end(),
                                        [&](const ordered_json& check) { return check.at("agreement") == agreement; }));
}

std::string check_lines(const ordered_json& check) {
  std::string line = text_of(check, "agreement");
  line.resize(12, ' ');
  line += text_of(check, "figure") + " " + text_of(check, "what") + "\n";
  const std::string accepted = text_of(check, "accepted");
  return line + std::string(16, ' ') + "paper: " + text_of(check, "paper") +
         (accepted.empty() ? "" : "; accepted: " + accepted) + "\n" + std::string(16, ' ') +
         "planned: " + text_of(check, "planned") + "\n";
}

std::string volume_line(const ordered_json& volume) {
  std::string line = volume.at("gpus").dump() + " GPUs, " + text_of(volume, "strategy") + ", " +
                     text_of(volume, "sent") + ": " + text_of(volume, "formula") + " = " +
                     grouped_digits(volume.at("formula_bytes").get<int64_t>()) + "\n";
  if (volume.contains("schedule_formula")) {
    line += std::string(16, ' ') + text_of(volume, "schedule_formula") + " = " +
            grouped_digits(volume.at("schedule_bytes").get<int64_t>()) + "\n";
  }
  return "  " + line + std::string(16, ' ') + "planned: " + grouped_digits(volume.at("planned_bytes").get<int64_t>()) +
         (volume.at("exact").get<bool>() ? ", exact\n" : ", differs\n");
}

}  // namespace

std::string paper_text(const ordered_json& document) {
  const ordered_json& checks = document.at("checks");
  std::string text = "the FSDP paper's figures, from " + document.at("plans").dump() + " plans\n" +
                     std::to_string(count_of(checks, "agrees")) + " statements agree, " +
                     std::to_string(count_of(checks, "differs")) + " differ, " +
                     std::to_string(count_of(checks, "not checked")) + " are not checked\n\n";
  for (const ordered_json& check : checks) text += check_lines(check);
  text +=
      "\nbytes that each rank sends in a step of T5-2B: M of all parameters, W GPUs, G a host,\n"
      "K of units that are gathered once\n";
  for (const ordered_json& volume : document.at("volumes")) text += volume_line(volume);
  return text;
}

}  // namespace fsdp::planner
