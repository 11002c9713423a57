#include "planner/advice/single_changes.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "config/errors.h"
#include "planner/memory/forecast.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::Config;
using Plan = std::function<ordered_json(const std::vector<std::string>&)>;

// Whether the verdict is about the device. Otherwise ranks are on CPUs, or only their hosts have too little.
bool is_about_device(const ordered_json& document) {
  const ordered_json& memory = document.at("memory");
  return memory.contains("device") && memory["device"].at("verdict") == memory.at("verdict");
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

bool fits(const ordered_json& result) { return result.at("verdict") == to_string(Verdict::kFits); }

// Adds the result of the shortest sequence of changes, from the first one on, that is enough, or that of all of them.
void add_sequence(ordered_json& results, const std::vector<Change>& changes, bool device, const Plan& plan) {
  Change all = changes.front();
  std::optional<ordered_json> last;
  for (size_t i = 1; i < changes.size() && !(last && fits(*last)); ++i) {
    all = together(all, changes[i]);
    if (std::optional<ordered_json> result = planned(all, device, plan)) last = std::move(result);
  }
  if (last) results.push_back(*std::move(last));
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
  const bool device = is_about_device(document);
  const int64_t before = total_of(document, device);
  ordered_json results = ordered_json::array();
  std::vector<Change> useful;
  for (const Change& change : changes_for(config)) {
    std::optional<ordered_json> result = planned(change, device, plan);
    if (!result || result->at("total").get<int64_t>() >= before) continue;
    results.push_back(*std::move(result));
    useful.push_back(change);
  }
  const bool one_is_enough =
      std::any_of(results.begin(), results.end(), [](const ordered_json& result) { return fits(result); });
  if (useful.size() > 1 && !one_is_enough) add_sequence(results, useful, device, plan);
  return results;
}

}  // namespace fsdp::planner
