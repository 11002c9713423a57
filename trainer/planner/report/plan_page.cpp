#include "planner/report/plan_page.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "planner/report/plan_tables.h"
#include "planner/report/plan_text.h"
#include "report_page/page_elements.h"
#include "report_page/page_text.h"
#include "report_page/step_section.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::element;
using trainer::Table;
using trainer::table_html;

// Without a timeline, points of the plot lie on the order of operations.
constexpr double kWholeStep = 100;

std::string titled(const std::string& heading, const Table& table) {
  return "<section>" + element("h2", heading) + "\n" + table_html(table) + "</section>\n";
}

// The part of the memory that the verdict is about.
const ordered_json& judged_use(const ordered_json& plan) {
  const ordered_json& memory = plan.at("memory");
  return memory.contains("device") ? memory["device"] : memory.at("host");
}

double place_in_step(const ordered_json& entry, const ordered_json& over_step) {
  return kWholeStep * entry.get<double>() / over_step.at("entries").get<double>();
}

// As step_json, for the order of operations.
ordered_json course_json(const ordered_json& over_step) {
  ordered_json samples = ordered_json::array(), phases = ordered_json::array();
  for (ordered_json point : over_step.at("points")) {
    point[0] = place_in_step(point[0], over_step);
    samples.push_back(std::move(point));
  }
  for (const ordered_json& phase : over_step.at("phases")) {
    phases.push_back({place_in_step(phase.at(0), over_step), phase.at(1)});
  }
  const ordered_json rank = {
      {"rank", 0}, {"rows", ordered_json::array()}, {"categories", over_step.at("kinds")}, {"memory", samples}};
  return {{"run", 0}, {"length", kWholeStep}, {"unit", "%"}, {"phases", phases}, {"ranks", {rank}}};
}

// "Dashed lines: forward from 0 %, backward from 31 %, update from 98 %."
std::string phases_text(const ordered_json& over_step) {
  constexpr size_t kMostNamed = 8;
  std::string text;
  for (const ordered_json& phase : over_step.at("phases")) {
    const int64_t begin = static_cast<int64_t>(place_in_step(phase.at(0), over_step));
    text += (text.empty() ? " Dashed lines: " : ", ") + phase.at(1).get<std::string>() + " from " +
            std::to_string(begin) + " %";
  }
  return over_step.at("phases").size() > kMostNamed ? " Dashed lines separate forward, backward and update."
                                                    : text + ".";
}

std::string verdict_section(const ordered_json& plan) {
  const auto verdict = plan.at("memory").at("verdict").get<std::string>();
  std::string kind = verdict;
  std::replace(kind.begin(), kind.end(), ' ', '-');
  std::string html = "<section>\n";
  std::istringstream lines(verdict_text(plan.at("memory")));
  for (std::string line; std::getline(lines, line);) {
    html += "<p class=\"verdict " + kind + "\">" + trainer::html_text(line) + "</p>\n";
  }
  const ordered_json& model = plan.at("model");
  const std::string units = model.at("units").dump() + " units", rank = "Rank " + plan.at("rank").dump();
  const std::string planned = " was planned for " + plan.at("steps").dump() + " steps";
  const bool whole = !plan.contains("pipeline");
  return html +
         element("p", "Parameters: " + grouped_digits(model.at("parameters").get<int64_t>()) +
                          (whole ? " in " + units : "") + ". " + rank + planned +
                          (whole ? "" : ", with its stages in " + units) + trainer::html_text(stack_text(plan)) + ".") +
         "</section>\n";
}

std::string course_section(const ordered_json& plan) {
  const ordered_json& over_step = judged_use(plan).at("over_step");
  if (over_step.at("points").empty()) return "";
  const std::string where = plan.at("memory").contains("device") ? "device" : "host";
  return "<section>" + element("h2", "Memory over a step") +
         element("p", "Tensors on the " + where + " during the last planned step, in the order of its operations." +
                          phases_text(over_step)) +
         trainer::figure("step-0-memory", "Memory by purpose",
                         "Memory over the step; the table of peaks has the numbers.") +
         "</section>\n";
}

std::string timeline_section(const trainer::StepTimeline& timeline) {
  return trainer::step_section(0, element("h2", "One step"), "The last planned step, as it is expected.", timeline);
}

std::string changes_section(const ordered_json& plan) {
  if (!plan.contains("changes")) return "";
  if (!plan["changes"].empty()) return titled("Changes, each planned by itself", changes_table(plan["changes"]));
  return "<section>" + element("h2", "Changes") + element("p", "No single change was found that makes it smaller.") +
         "</section>\n";
}

std::string body_of(const ordered_json& plan, const std::optional<trainer::StepTimeline>& timeline) {
  const ordered_json& use = judged_use(plan);
  return verdict_section(plan) + changes_section(plan) +
         (plan.contains("pipeline") ? titled("Ranks of the pipeline", stages_table(plan["pipeline"]["ranks"])) : "") +
         (plan.contains("time") ? titled("Time of a step", plan_time_table(plan["time"])) : "") +
         (timeline ? timeline_section(*timeline) : course_section(plan)) + titled("Peaks", peaks_table(use)) +
         titled("Totals", totals_table(plan)) +
         titled("Largest tensors at the peak", largest_table(use.at("largest"))) +
         titled("Units", units_table(plan.at("units")));
}

}  // namespace

std::string plan_page(const ordered_json& plan, const std::optional<trainer::StepTimeline>& timeline) {
  ordered_json data = {
      {"runs", ordered_json::array()}, {"plots", ordered_json::array()}, {"steps", ordered_json::array()}};
  const ordered_json& over_step = judged_use(plan).at("over_step");
  if (timeline) {
    data["steps"].push_back(trainer::step_json(0, *timeline));
  } else if (!over_step.at("points").empty()) {
    data["steps"].push_back(course_json(over_step));
  }
  const std::string title = "Plan: " + plan.at("model").at("type").get<std::string>() + " on " +
                            plan.at("cluster").at("text").get<std::string>();
  return trainer::whole_page(title, body_of(plan, timeline), data, "fsdp plan");
}

}  // namespace fsdp::planner
