#include "report_page/step_section.h"

#include <utility>

#include "report_page/comparison.h"
#include "report_page/page_elements.h"
#include "report_page/page_text.h"

namespace fsdp::trainer {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMostRanksDrawn = 8;

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

}  // namespace

ordered_json step_json(size_t number, const StepTimeline& step) {
  ordered_json ranks = ordered_json::array();
  for (const RankTimeline& rank : step.ranks) {
    if (ranks.size() < kMostRanksDrawn) ranks.push_back(rank_json(rank));
  }
  return {{"run", number}, {"length", step.length_ms}, {"unit", "ms"}, {"ranks", ranks}};
}

std::string step_section(size_t number, const std::string& heading, const std::string& remark,
                         const StepTimeline& step) {
  const std::string id = "step-" + std::to_string(number), length = number_text(step.length_ms) + " ms";
  std::string html = "<section>" + heading + "<p>" + html_text(remark);
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

}  // namespace fsdp::trainer
