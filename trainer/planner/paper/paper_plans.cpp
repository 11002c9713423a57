#include "planner/paper/paper_plans.h"

#include <stdexcept>
#include <utility>

#include "config/config_reader.h"
#include "planner/memory/forecast.h"
#include "planner/run/plan.h"

namespace fsdp::planner {

PaperPlans::PaperPlans(const std::vector<PaperRun>& runs, std::vector<Answer> answers) {
  for (size_t i = 0; i < runs.size(); ++i) answers_.emplace(runs[i].name(), std::move(answers.at(i)));
}

const Answer& PaperPlans::answer(const PaperRun& run) const {
  const auto found = answers_.find(run.name());
  if (found == answers_.end()) throw std::runtime_error("--paper: no plan of " + run.name());
  return found->second;
}

const nlohmann::ordered_json& PaperPlans::of(const PaperRun& run) const {
  const Answer& found = answer(run);
  const std::string& complaint = found.refusal.empty() ? found.failure : found.refusal;
  if (!complaint.empty()) throw std::runtime_error("--paper: the plan of " + run.name() + " failed: " + complaint);
  return found.result;
}

double PaperPlans::gib(const PaperRun& run, const char* memory) const {
  return of(run).at("memory").at("device").at(memory).get<double>() / static_cast<double>(1 << 30);
}

bool PaperPlans::fits(const PaperRun& run) const {
  return of(run).at("memory").at("device").at("verdict") != to_string(Verdict::kDoesNotFit);
}

double PaperPlans::backward_part(const PaperRun& run) const {
  return of(run).at("time").at("backward_seconds").get<double>() / step_seconds(run);
}

PaperPlans plan_paper(const std::vector<PaperRun>& runs, size_t at_once, const std::function<void()>& planned) {
  std::vector<PlanRequest> requests;
  requests.reserve(runs.size());
  for (const PaperRun& run : runs) {
    PlanRequest& request = requests.emplace_back();
    request.config = trainer::read_config(run.keys, "--paper", {});
    request.options.cluster = paper_cluster(run.hosts);
  }
  return {runs, plan_all(requests, at_once, planned)};
}

}  // namespace fsdp::planner
