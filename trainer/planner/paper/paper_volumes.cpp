#include "planner/paper/paper_volumes.h"

#include <stdexcept>

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

constexpr const char* kAllReduce = "all-reduce";

// The bytes of the parameters in the dtype in which ranks exchange them.
struct ModelBytes {
  int64_t all = 0;   // M
  int64_t kept = 0;  // of units that are gathered once in a step: the root, and the block that ends forward
};

ModelBytes model_bytes(const ordered_json& plan) {
  ModelBytes bytes;
  for (const ordered_json& unit : plan.at("units")) {
    const auto gathered = unit.at("gathered_bytes").get<int64_t>();
    const auto name = unit.at("name").get<std::string>();
    bytes.all += gathered;
    if (name == "root" || name == "decoder.block.23") bytes.kept += gathered;
  }
  return bytes;
}

int64_t sent_bytes(const ordered_json& plan, bool all_reduces) {
  int64_t sent = 0;
  for (const ordered_json& sum : plan.at("time").at("collectives")) {
    if ((sum.at("kind") == kAllReduce) == all_reduces) sent += sum.at("sent_bytes").get<int64_t>();
  }
  return sent;
}

// numerator / denominator * bytes, which is whole.
int64_t part_of(int64_t bytes, int64_t numerator, int64_t denominator) {
  if (bytes * numerator % denominator != 0) throw std::runtime_error("--paper: a volume is no whole number of bytes");
  return bytes * numerator / denominator;
}

PaperVolume flat_volume(const PaperPlans& plans, const std::string& strategy, int hosts) {
  const ordered_json& plan = plans.of(volume_run(strategy, hosts));
  const ModelBytes bytes = model_bytes(plan);
  const int64_t ranks = int64_t{hosts} * kPaperRanksPerHost;
  const int64_t times = strategy == "full_shard" ? 3 : 2;
  PaperVolume volume{.gpus = static_cast<int>(ranks),
                     .strategy = strategy,
                     .sent = "all",
                     .formula = std::to_string(times) + "M (W - 1) / W",
                     .by_formula = part_of(times * bytes.all, ranks - 1, ranks),
                     .planned = sent_bytes(plan, strategy == "no_shard")};
  if (strategy == "full_shard") {
    volume.corrected = "(3M - K) (W - 1) / W";
    volume.by_corrected = part_of(3 * bytes.all - bytes.kept, ranks - 1, ranks);
  }
  return volume;
}

PaperVolume inside_volume(const PaperPlans& plans, const std::string& strategy, int hosts) {
  const ordered_json& plan = plans.of(volume_run(strategy, hosts));
  const ModelBytes bytes = model_bytes(plan);
  const bool gathers_again = strategy == "hybrid_shard";
  const int64_t times = gathers_again ? 3 : 2;
  PaperVolume volume{.gpus = hosts * kPaperRanksPerHost,
                     .strategy = strategy,
                     .sent = "in the host",
                     .formula = std::to_string(times) + "M (G - 1) / G",
                     .by_formula = part_of(times * bytes.all, kPaperRanksPerHost - 1, kPaperRanksPerHost),
                     .planned = sent_bytes(plan, false)};
  if (gathers_again) {
    volume.corrected = "(3M - K) (G - 1) / G";
    volume.by_corrected = part_of(3 * bytes.all - bytes.kept, kPaperRanksPerHost - 1, kPaperRanksPerHost);
  }
  return volume;
}

// The paper's formula counts W - 1 steps; a ring of W / G hosts takes W / G - 1.
PaperVolume across_volume(const PaperPlans& plans, const std::string& strategy, int hosts) {
  const ordered_json& plan = plans.of(volume_run(strategy, hosts));
  const ModelBytes bytes = model_bytes(plan);
  const int64_t ranks = int64_t{hosts} * kPaperRanksPerHost;
  return {.gpus = static_cast<int>(ranks),
          .strategy = strategy,
          .sent = "across hosts",
          .formula = "2M (W - 1) / (G W)",
          .by_formula = 2 * bytes.all / kPaperRanksPerHost * (ranks - 1) / ranks,
          .corrected = "2M (W - G) / (G W)",
          .by_corrected = part_of(2 * bytes.all / kPaperRanksPerHost, hosts - 1, hosts),
          .planned = sent_bytes(plan, true)};
}

}  // namespace

std::vector<PaperVolume> paper_volumes(const PaperPlans& plans, const std::vector<int>& hosts_of_plans) {
  std::vector<PaperVolume> volumes;
  for (const int hosts : hosts_of_plans) {
    for (const std::string& strategy : volume_strategies()) {
      if (strategy.rfind("hybrid", 0) != 0) {
        volumes.push_back(flat_volume(plans, strategy, hosts));
        continue;
      }
      volumes.push_back(inside_volume(plans, strategy, hosts));
      volumes.push_back(across_volume(plans, strategy, hosts));
    }
  }
  return volumes;
}

ordered_json volume_json(const PaperVolume& volume) {
  ordered_json json = {{"gpus", volume.gpus},
                       {"strategy", volume.strategy},
                       {"sent", volume.sent},
                       {"formula", volume.formula},
                       {"formula_bytes", volume.by_formula}};
  if (!volume.corrected.empty()) {
    json["schedule_formula"] = volume.corrected;
    json["schedule_bytes"] = volume.by_corrected;
  }
  json["planned_bytes"] = volume.planned;
  json["exact"] = volume.planned == (volume.corrected.empty() ? volume.by_formula : volume.by_corrected);
  return json;
}

}  // namespace fsdp::planner
