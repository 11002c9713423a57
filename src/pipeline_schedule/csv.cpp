#include <c10/util/Exception.h>

#include <algorithm>
#include <istream>
#include <ostream>

#include "fsdp/pipeline_schedule.h"

namespace fsdp {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

std::vector<PipelineAction> read_line(std::string_view line, const std::string& source, size_t number) {
  std::vector<PipelineAction> order;
  for (size_t cell = 1;; ++cell) {
    const size_t comma = line.find(',');
    const std::string_view text = trimmed(line.substr(0, comma));
    try {
      if (!text.empty()) order.push_back(parse_pipeline_action(text));
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, source, ", line ", number, ", cell ", cell, ": ", error.what_without_backtrace());
    }
    if (comma == std::string_view::npos) return order;
    line.remove_prefix(comma + 1);
  }
}

// The ranks of the stages that the orders name; micro-batches are counted as well.
void place_stages(PipelineSchedule& schedule, const std::string& source) {
  constexpr int kNowhere = -1;
  size_t actions = 0;
  for (const auto& order : schedule.of_rank) actions += order.size();
  TORCH_CHECK(actions > 0, source, " has no actions of a pipeline");
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    for (const PipelineAction& action : schedule.of_rank[static_cast<size_t>(rank)]) {
      const auto stage = static_cast<size_t>(action.stage);
      TORCH_CHECK(stage < actions, source, ", line ", rank + 1, ": there is no action of some stage before stage ",
                  action.stage, "; stages are numbered from 0");
      if (stage >= schedule.rank_of_stage.size()) schedule.rank_of_stage.resize(stage + 1, kNowhere);
      int& holder = schedule.rank_of_stage[stage];
      TORCH_CHECK(holder == kNowhere || holder == rank, source, ", lines ", holder + 1, " and ", rank + 1, ": stage ",
                  action.stage, " stands in both");
      holder = rank;
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch.value_or(0) + 1);
    }
  }
  const auto& ranks = schedule.rank_of_stage;
  const auto missing = std::find(ranks.begin(), ranks.end(), kNowhere);
  TORCH_CHECK(missing == ranks.end(), source, ": stage ", missing - ranks.begin(), " of ", ranks.size(),
              " stands in no line");
}

}  // namespace

PipelineSchedule read_pipeline_csv(std::istream& stream, const std::string& source) {
  PipelineSchedule schedule;
  std::string line;
  while (std::getline(stream, line)) {
    if (trimmed(line).empty()) continue;
    schedule.of_rank.push_back(read_line(line, source, schedule.of_rank.size() + 1));
  }
  TORCH_CHECK(!stream.bad(), source, " cannot be read");
  place_stages(schedule, source);
  return schedule;
}

void write_pipeline_csv(std::ostream& stream, const PipelineSchedule& schedule) {
  for (const auto& order : schedule.of_rank) {
    for (size_t i = 0; i < order.size(); ++i) stream << (i ? "," : "") << to_string(order[i]);
    stream << "\n";
  }
}

}  // namespace fsdp
