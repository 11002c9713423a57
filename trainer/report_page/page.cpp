#include "report_page/page.h"

#include "report_page/comparison.h"
#include "report_page/page_elements.h"
#include "report_page/page_text.h"
#include "report_page/plots.h"
#include "report_page/step_section.h"

namespace fsdp::trainer {

namespace {

using nlohmann::ordered_json;

ordered_json data_of(const std::vector<RunData>& runs, const std::vector<Plot>& plots) {
  ordered_json data = {
      {"runs", ordered_json::array()}, {"plots", ordered_json::array()}, {"steps", ordered_json::array()}};
  for (const Plot& plot : plots) data["plots"].push_back(plot_json(plot));
  for (size_t i = 0; i < runs.size(); ++i) {
    data["runs"].push_back(runs[i].name);
    if (runs[i].step) data["steps"].push_back(step_json(i, *runs[i].step));
  }
  return data;
}

std::string runs_section(const std::vector<RunData>& runs) {
  std::string html = "<section><h2>Runs</h2>\n" + table_html(summary_table(runs));
  if (runs.size() > 1) {
    html += "<ul>";
    for (const std::string& line : first_loss_differences(runs)) html += element("li", line);
    html += "</ul>\n";
    const Table differences = config_differences(runs);
    html += "<h3>Keys of the config that differ</h3>\n";
    html += differences.rows.empty() ? "<p>None, except for output paths.</p>\n" : table_html(differences);
  }
  return html + "</section>\n";
}

std::string plots_section(const std::vector<RunData>& runs, const std::vector<Plot>& plots) {
  std::string html = "<section><h2>Over the steps</h2>\n";
  if (plots.empty()) return html + "<p>No step has been logged yet.</p></section>\n";
  html +=
      "<p class=\"controls\"><label><input type=\"checkbox\" id=\"log-scale\"> logarithmic loss and gradient "
      "norm</label> "
      "<label>mean over <input type=\"number\" id=\"smoothing\" min=\"1\" max=\"1000\" value=\"1\"> logged "
      "steps</label> "
      "<span>Drag to zoom all plots; double-click to zoom out.</span></p>\n<div class=\"plots\">\n";
  for (const Plot& plot : plots) html += figure("plot-" + plot.id, plot.title, plot_summary(plot, runs));
  return html + "</div></section>\n";
}

std::string run_step_section(size_t number, const RunData& run) {
  const std::string heading = element("h2", "One step of " + run.name);
  if (!run.step) return "<section>" + heading + "<p>" + html_text(run.no_step) + ".</p></section>\n";
  const std::string length = number_text(run.step->length_ms) + " ms";
  return step_section(number, heading, "The last whole step of the trace took " + length + ".", *run.step);
}

std::string title_of(const std::vector<RunData>& runs, const std::string& title) {
  if (!title.empty()) return title;
  std::string names;
  for (const RunData& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  return names;
}

}  // namespace

std::string report_page(const std::vector<RunData>& runs, const std::string& title) {
  const std::vector<Plot> plots = plots_of(runs);
  std::string body = runs_section(runs) + plots_section(runs, plots);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].step || !runs[i].no_step.empty()) body += run_step_section(i, runs[i]);
  }
  return whole_page(title_of(runs, title), body, data_of(runs, plots), "fsdp report");
}

}  // namespace fsdp::trainer
