// The plans of the paper's runs.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/paper/paper_runs.h"
#include "planner/run/child_answers.h"

namespace fsdp::planner {

class PaperPlans {
 public:
  // `answers`: one for each of the runs.
  PaperPlans(const std::vector<PaperRun>& runs, std::vector<Answer> answers);

  size_t count() const { return answers_.size(); }
  // Returns the plan. Throws a std::runtime_error if it failed or was refused, and if there is no such run.
  const nlohmann::ordered_json& of(const PaperRun& run) const;
  // Returns why the run was refused; empty if it was not.
  const std::string& refusal(const PaperRun& run) const { return answer(run).refusal; }

  // Of the plan of a run.
  double step_seconds(const PaperRun& run) const { return of(run).at("time").at("step_seconds"); }
  double tflops(const PaperRun& run) const { return of(run).at("time").at("tflops_per_device"); }
  double gib(const PaperRun& run, const char* memory) const;
  bool fits(const PaperRun& run) const;
  double backward_part(const PaperRun& run) const;

 private:
  const Answer& answer(const PaperRun& run) const;

  std::map<std::string, Answer> answers_;  // by name
};

// Makes plans of the runs, at most `at_once` at a time. Must be called before this process starts threads.
PaperPlans plan_paper(const std::vector<PaperRun>& runs, size_t at_once, const std::function<void()>& planned = {});

}  // namespace fsdp::planner
