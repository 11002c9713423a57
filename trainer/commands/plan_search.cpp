#include "commands/plan_search.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "config/errors.h"
#include "formats/common/json_text.h"
#include "planner/report/progress_line.h"
#include "planner/search/search_document.h"

namespace fsdp::trainer {

namespace {

const std::set<std::string>& batch_keys() {
  static const std::set<std::string> keys = {"train_batch_size", "gradient_accumulation_steps"};
  return keys;
}

std::set<std::string> keys_set(const PlanCommand& command) {
  std::set<std::string> keys;
  for (const std::string& override : command.overrides) keys.insert(override.substr(0, override.find('=')));
  return keys;
}

bool gives_batch(const PlanCommand& command, const std::set<std::string>& set) {
  const auto is_given = [&](const auto& keys) {
    return std::any_of(batch_keys().begin(), batch_keys().end(),
                       [&](const std::string& key) { return keys.count(key); });
  };
  if (is_given(set)) return true;
  return !command.config_path.empty() && is_given(formats::read_json_file(command.config_path));
}

// Keys that the user sets keep their values; of the batch, the samples of a step do.
planner::SpaceOptions space_options(const PlanCommand& command) {
  const std::set<std::string> set = keys_set(command);
  planner::SpaceOptions options;
  std::set_difference(set.begin(), set.end(), batch_keys().begin(), batch_keys().end(),
                      std::inserter(options.fixed, options.fixed.end()));
  options.keeps_samples = !command.free_batch && gives_batch(command, set);
  return options;
}

// Candidates that nobody chose have nobody to warn.
class NoWarnings final : public c10::WarningHandler {
 public:
  NoWarnings() : before_(c10::WarningUtils::get_warning_handler()) { c10::WarningUtils::set_warning_handler(this); }
  ~NoWarnings() override { c10::WarningUtils::set_warning_handler(before_); }
  void process(const c10::Warning& /*warning*/) override {}

 private:
  c10::WarningHandler* before_;
};

int status_of(const planner::SearchFronts& fronts) {
  if (!fronts.fitting.empty()) return kExitSuccess;
  return fronts.tight.empty() ? kExitDoesNotFit : kExitTight;
}

}  // namespace

int run_plan_search(const PlanCommand& command, const planner::PlanOptions& options,
                    const std::function<Config(const std::vector<std::string>&)>& config) {
  if (!options.cluster.device && !options.host_memory) {
    throw ConfigError(
        "--search for ranks on CPUs needs --host-memory, such as --host-memory 64GiB: it looks for what fits");
  }
  const auto begin = std::chrono::steady_clock::now();
  const planner::SpaceOptions space = space_options(command);
  const size_t at_once = planner::plans_at_once(command.jobs);
  planner::ProgressLine line;
  size_t planned = 0;
  const auto show = [&] { line.show(c10::str(++planned, " plans")); };
  const NoWarnings silent;
  const planner::SearchInput input = {.space = planner::search_space(config({}), options.cluster, space),
                                      .cluster = options.cluster,
                                      .host_memory = options.host_memory,
                                      .most_plans = static_cast<size_t>(command.search_limit),
                                      .config = config,
                                      .plan_all = [&](const std::vector<Config>& configs) {
                                        return planner::plan_all(configs, options, at_once, show);
                                      }};
  planner::Candidates candidates(input);
  planner::search_plans(input, candidates);
  line.remove();
  const planner::SearchFronts fronts = planner::search_fronts(input, candidates);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const nlohmann::ordered_json document = planner::search_document(
      input, candidates, fronts, {.keeps_samples = space.keeps_samples, .seconds = taken.count(), .at_once = at_once});
  std::fputs((command.json ? document.dump(2) + "\n" : planner::search_text(document)).c_str(), stdout);
  return status_of(fronts);
}

}  // namespace fsdp::trainer
