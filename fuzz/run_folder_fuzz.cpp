// Reads a run for `fsdp report`. The input contains metrics.jsonl, run.json and a trace.
#include "reader_check.h"
#include "report_page/comparison.h"
#include "report_page/page_text.h"
#include "report_page/plots.h"

using namespace fsdp;

namespace {

// Makes everything that a page shows of a run, except for the page's frame. The run is the only one on its page.
void describe(const std::vector<trainer::RunData>& runs) {
  for (const trainer::Plot& plot : trainer::plots_of(runs)) {
    trainer::html_text(trainer::plot_summary(plot, runs));
    trainer::script_json(trainer::plot_json(plot));
  }
  fuzz::require(trainer::summary_table(runs).columns.size() == 2, "a table has a column for a run");
  trainer::config_differences(runs);
  if (const auto& step = runs.front().step) {
    fuzz::require(!step->ranks.empty() && step->length_ms >= 0, "a step has ranks and a length");
    trainer::step_table(*step);
    trainer::memory_table(*step);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::TemporaryFolder folder;
  const auto files = fuzz::split_files(fuzz::text_of(data, size), 3);
  folder.write("metrics.jsonl", files[0]);
  folder.write("run.json", files[1]);
  folder.write("trace.json", files[2]);
  fuzz::check_reader(size, folder.path().string(), [&] { describe(trainer::read_runs({folder.path().string()})); });
  return 0;
}
