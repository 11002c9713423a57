#include "planner/search/search_document.h"

#include <algorithm>

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

const char* name_of_speed(Speed speed) {
  if (speed == Speed::kTokensPerSecond) return "tokens_per_second";
  return speed == Speed::kSamplesPerSecond ? "samples_per_second" : "train_batch_size";
}

ordered_json row_of(const SearchInput& input, const PlannedCandidate& planned, Speed speed) {
  const MicroBatch& batch = input.space.batches[planned.candidate.batch];
  ordered_json row = {{"set", planned.overrides},
                      {"verdict", to_string(planned.verdict)},
                      {"train_batch_size", batch.samples},
                      {"gradient_accumulation_steps", batch.passes}};
  if (speed != Speed::kMicroBatch) row[name_of_speed(speed)] = planned.speed;
  if (planned.step_seconds) row["step_seconds"] = *planned.step_seconds;
  if (planned.device) row["device"] = *planned.device;
  row["host"] = planned.host;
  return row;
}

ordered_json rows_of(const SearchInput& input, const Candidates& candidates, const std::vector<size_t>& indices) {
  ordered_json rows = ordered_json::array();
  for (const size_t index : indices) rows.push_back(row_of(input, candidates.planned()[index], candidates.speed()));
  return rows;
}

ordered_json counts_of(const Candidates& candidates) {
  const auto with_verdict = [&](Verdict verdict) {
    return std::count_if(candidates.planned().begin(), candidates.planned().end(),
                         [&](const PlannedCandidate& one) { return one.verdict == verdict; });
  };
  return {{"planned", candidates.planned().size()},
          {"fit", with_verdict(Verdict::kFits)},
          {"tight", with_verdict(Verdict::kTight)},
          {"do_not_fit", with_verdict(Verdict::kDoesNotFit)},
          {"skipped", candidates.count(CombinationState::kSkipped)},
          {"refused", candidates.count(CombinationState::kRefused)},
          {"failed", candidates.count(CombinationState::kFailed)}};
}

const PlannedCandidate& nearest(const Candidates& candidates) {
  return *std::min_element(
      candidates.planned().begin(), candidates.planned().end(),
      [](const PlannedCandidate& left, const PlannedCandidate& right) { return left.bytes() < right.bytes(); });
}

}  // namespace

ordered_json search_document(const SearchInput& input, const Candidates& candidates, const SearchFronts& fronts,
                             const SearchRun& run) {
  ordered_json search = {{"compared", name_of_speed(candidates.speed())},
                         {"seconds", run.seconds},
                         {"at_once", run.at_once},
                         {"counts", counts_of(candidates)},
                         {"limit", input.most_plans},
                         {"is_cut", candidates.is_cut()}};
  if (!candidates.first_failure().empty()) search["first_failure"] = candidates.first_failure();
  const MicroBatch& own = input.space.batches[input.space.config_batch];
  const int64_t data_ranks = input.cluster.ranks() / input.config({}).parallelism.tensor_degree;
  search["samples_per_step"] =
      run.keeps_samples ? ordered_json(own.samples * own.passes * data_ranks) : ordered_json(nullptr);
  search["config"] = row_of(input, candidates.planned().front(), candidates.speed());
  search["front"] = rows_of(input, candidates, fronts.fitting);
  search["tight"] = rows_of(input, candidates, fronts.tight);
  if (fronts.fitting.empty() && fronts.tight.empty()) {
    search["nearest"] = row_of(input, nearest(candidates), candidates.speed());
  }
  ordered_json document;
  for (const char* key : {"model", "cluster", "stack", "rank", "steps"})
    document[key] = candidates.first_plan().at(key);
  document["search"] = std::move(search);
  return document;
}

}  // namespace fsdp::planner
