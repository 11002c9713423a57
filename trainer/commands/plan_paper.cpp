#include "commands/plan_paper.h"

#include <c10/util/StringUtil.h>

#include <cstdio>

#include "config/errors.h"
#include "formats/common/output_file.h"
#include "planner/paper/paper_document.h"
#include "planner/report/pretty_json.h"
#include "planner/report/progress_line.h"
#include "planner/run/plan.h"
#include "report_page/page_file.h"

namespace fsdp::trainer {

namespace {

planner::PaperPlans plan_with_progress(const PlanCommand& command) {
  const std::vector<planner::PaperRun> runs = planner::paper_runs();
  planner::ProgressLine line;
  size_t planned = 0;
  return planner::plan_paper(runs, planner::plans_at_once(command.jobs), [&] {
    ++planned;
    line.show(c10::str(planned, " of ", runs.size(), " plans"));
  });
}

}  // namespace

int run_paper_plans(const PlanCommand& command) {
  if (!command.html.empty()) check_folder_of_page(command.html, "--html");
  const nlohmann::ordered_json document = planner::paper_document(plan_with_progress(command));
  if (!command.html.empty()) formats::write_file(command.html, planner::paper_page(document));
  const std::string text = command.json ? planner::pretty_json(document) : planner::paper_text(document);
  std::fputs(text.c_str(), stdout);
  return kExitSuccess;
}

}  // namespace fsdp::trainer
