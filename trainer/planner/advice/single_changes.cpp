#include "planner/advice/single_changes.h"

#include <c10/util/StringUtil.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "config/errors.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::Config;
using Plan = std::function<ordered_json(const std::vector<std::string>&)>;

// The bytes that the verdict is about: of a device or, for ranks on CPUs and if only hosts have too little, of a host.
const ordered_json& judged_part(const ordered_json& document) {
  const ordered_json& memory = document.at("memory");
  const bool device = memory.contains("device") && memory["device"].at("verdict") == memory.at("verdict");
  return memory.at(device ? "device" : "host");
}

int64_t total_of(const ordered_json& document, bool device) {
  const ordered_json& memory = document.at("memory");
  return device ? memory.at("device").at("total") : memory.at("host").at("per_host");
}

// Returns nothing if the change is refused.
std::optional<ordered_json> planned(const Change& change, bool device, const Plan& plan) {
  try {
    const ordered_json document = plan(change.overrides);
    ordered_json result = {{"set", change.overrides},
                           {"verdict", document.at("memory").at("verdict")},
                           {"total", total_of(document, device)}};
    if (!change.note.empty()) result["note"] = change.note;
    return result;
  } catch (const trainer::ConfigError&) {
    return std::nullopt;
  }
}

Change together(const Change& first, const Change& second) {
  Change both = first;
  both.overrides.insert(both.overrides.end(), second.overrides.begin(), second.overrides.end());
  if (!first.note.empty() && !second.note.empty()) both.note += "; ";
  both.note += second.note;
  return both;
}

}  // namespace

std::vector<Change> changes_for(const Config& config) {
  std::vector<Change> changes;
  if (!config.model.fused_loss) changes.push_back({{"fused_loss=true"}, ""});
  if (config.sharding.strategy != ShardingStrategy::kFullShard)
    changes.push_back({{"sharding_strategy=full_shard"}, ""});
  if (!config.model.activation_checkpointing) {
    changes.push_back({{"activation_checkpointing=true"}, "computes each block's forward a second time"});
  }
  if (const int64_t batch = config.data.train_batch_size; batch > 1 && batch % 2 == 0) {
    changes.push_back({{c10::str("train_batch_size=", batch / 2),
                        c10::str("gradient_accumulation_steps=", 2 * config.steps.gradient_accumulation_steps)},
                       "the same samples in a step"});
  }
  if (!config.sharding.cpu_offload && !config.sharding.offload_path) {
    changes.push_back({{"cpu_offload=true"}, "shards, gradients and the optimizer are on the host"});
  }
  return changes;
}

ordered_json planned_changes(const Config& config, const ordered_json& document, const Plan& plan) {
  const bool device = judged_part(document).contains("context");
  const int64_t before = total_of(document, device);
  ordered_json results = ordered_json::array();
  std::optional<Change> all;
  bool mended = false;
  std::vector<ordered_json> combined;
  for (const Change& change : changes_for(config)) {
    std::optional<ordered_json> result = planned(change, device, plan);
    if (!result || result->at("total").get<int64_t>() >= before) continue;
    mended |= result->at("verdict") == "fits";
    results.push_back(*std::move(result));
    all = all ? together(*all, change) : change;
    if (results.size() > 1 && !mended) {
      if (std::optional<ordered_json> both = planned(*all, device, plan)) combined.push_back(*std::move(both));
    }
  }
  for (ordered_json& both : combined) {
    if (mended) break;
    mended = both.at("verdict") == "fits";
    if (mended || &both == &combined.back()) results.push_back(std::move(both));
  }
  return results;
}

}  // namespace fsdp::planner
