#include "report_page/page.h"

#include "report_page/comparison.h"
#include "report_page/page_assets.h"
#include "report_page/page_text.h"
#include "report_page/plots.h"

namespace fsdp::trainer {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMostRanksDrawn = 8;

// ---------------------------------------------------------------- data for the script

ordered_json ranges_json(const TimelineRow& row) {
  ordered_json ranges = ordered_json::array();
  for (const TimelineRange& range : row.ranges) {
    ranges.push_back({range.begin_ms, range.end_ms, range.kind, range.name, range.pass});
  }
  return ranges;
}

ordered_json rank_json(const RankTimeline& rank) {
  ordered_json rows = ordered_json::array(), samples = ordered_json::array();
  for (const TimelineRow& row : rank.rows) rows.push_back({{"name", row.name}, {"ranges", ranges_json(row)}});
  for (const MemorySample& sample : rank.memory) {
    ordered_json point = {sample.at_ms};
    for (const double bytes : sample.bytes) point.push_back(bytes);
    samples.push_back(std::move(point));
  }
  return {{"rank", rank.rank}, {"rows", rows}, {"categories", rank.categories}, {"memory", samples}};
}

ordered_json step_json(size_t run, const StepTimeline& step) {
  ordered_json ranks = ordered_json::array();
  for (const RankTimeline& rank : step.ranks) {
    if (ranks.size() < kMostRanksDrawn) ranks.push_back(rank_json(rank));
  }
  return {{"run", run}, {"length_ms", step.length_ms}, {"ranks", ranks}};
}

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

// ---------------------------------------------------------------- elements

std::string element(const std::string& tag, const std::string& text) {
  return "<" + tag + ">" + html_text(text) + "</" + tag + ">";
}

std::string table_html(const Table& table) {
  std::string html = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const std::string& column : table.columns) html += "<th scope=\"col\">" + html_text(column) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& [name, cells] : table.rows) {
    html += "<tr><th scope=\"row\">" + html_text(name) + "</th>";
    for (const std::string& cell : cells) html += element("td", cell);
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table></div>\n";
}

std::string figure(const std::string& id, const std::string& title, const std::string& summary) {
  return "<figure id=\"" + id + "\"><figcaption>" + html_text(title) +
         "</figcaption><div class=\"legend\"></div><div class=\"plot\" role=\"img\" aria-label=\"" +
         html_text(summary) + "\"></div></figure>\n";
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

std::string step_section(size_t number, const RunData& run) {
  const std::string heading = "<section>" + element("h2", "One step of " + run.name);
  if (!run.step) return heading + "<p>" + html_text(run.no_step) + ".</p></section>\n";
  const StepTimeline& step = *run.step;
  const std::string id = "step-" + std::to_string(number), length = number_text(step.length_ms) + " ms";
  std::string html = heading + "<p>" + html_text("The last whole step of the trace took " + length + ".");
  if (step.ranks.size() > kMostRanksDrawn) {
    html += html_text(" The plots show the first " + std::to_string(kMostRanksDrawn) + " of " +
                      std::to_string(step.ranks.size()) + " ranks; ui.perfetto.dev shows the whole trace.");
  }
  html += "</p>\n" +
          figure(id + "-timeline", "Gathers and reductions against computation",
                 "What each rank did during a step of " + length + "; the table after it has the sums.") +
          table_html(step_table(step));
  if (!step.ranks.front().memory.empty()) {
    html += figure(id + "-memory", "Memory by category", "Memory over the step; the table after it has the peaks.") +
            table_html(memory_table(step));
  } else {
    html += "<p>The trace holds no memory figures.</p>\n";
  }
  return html + "</section>\n";
}

std::string title_of(const std::vector<RunData>& runs, const std::string& title) {
  if (!title.empty()) return title;
  std::string names;
  for (const RunData& run : runs) names += (names.empty() ? "" : ", ") + run.name;
  return names;
}

// The head of the page, with a policy that prevents the page from loading or sending anything.
constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

std::string asset(const char* tag, std::string_view text) {
  return std::string("<") + tag + ">\n" + std::string(text) + "\n</" + tag + ">\n";
}

}  // namespace

std::string report_page(const std::vector<RunData>& runs, const std::string& title) {
  const std::vector<Plot> plots = plots_of(runs);
  std::string html = kHead + element("title", title_of(runs, title)) + "\n" + asset("style", kDygraphsCss) +
                     asset("style", kReportCss) + "</head>\n<body>\n<main>\n" + element("h1", title_of(runs, title)) +
                     "\n" + runs_section(runs) + plots_section(runs, plots);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].step || !runs[i].no_step.empty()) html += step_section(i, runs[i]);
  }
  html +=
      "</main>\n<noscript><p>The plots need JavaScript.</p></noscript>\n<footer>Made by fsdp report. Plots by "
      "dygraphs.</footer>\n<!--\n" +
      std::string(kDygraphsLicence) + "-->\n<script type=\"application/json\" id=\"data\">" +
      script_json(data_of(runs, plots)) + "</script>\n" + asset("script", kDygraphsJs) + asset("script", kReportJs);
  return html + "</body>\n</html>\n";
}

}  // namespace fsdp::trainer
