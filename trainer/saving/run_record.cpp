#include "saving/run_record.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "config/config_reader.h"
#include "formats/common/json_text.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

json scaling_json(const GradScalerState& state) {
  return {{"scale", state.scale}, {"growth_tracker", state.growth_tracker}};
}

// Reads values of an object; errors begin with `source` and name the key.
class RecordReader {
 public:
  RecordReader(const json& object, std::string source) : object_(object), source_(std::move(source)) {}

  template <typename T>
  T get(const char* key) const {
    try {
      return part(key).get<T>();
    } catch (const json::exception&) {
      refuse("its record has", formats::json_text(part(key)) + " as", key);
    }
  }
  int64_t count(const char* key) const {
    const auto value = get<int64_t>(key);
    if (value < 0) refuse("its record has", std::to_string(value) + " as", key);
    return value;
  }
  RecordReader object(const char* key) const {
    if (!part(key).is_object()) refuse("its record has", formats::json_text(part(key)) + " as", key);
    return {part(key), source_};
  }
  const json& part(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse("its record", "lacks", key);
    return *found;
  }

 private:
  [[noreturn]] void refuse(const char* what, const std::string& how, const char* key) const {
    FSDP_CHECK_WITH(FileError, false, source_, ": is not a checkpoint of `fsdp train`: ", what, " ", how, " \"", key,
                    "\"");
  }

  const json& object_;
  std::string source_;
};

GradScalerState scaling_of(const RecordReader& reader) {
  GradScalerState state;
  state.scale = reader.get<double>("scale");
  state.growth_tracker = reader.get<int64_t>("growth_tracker");
  return state;
}

RunRecord own_record(const json& user, const std::string& source) {
  const RecordReader reader(user, source);
  const RecordReader data = reader.object("data");
  RunRecord record;
  record.step = reader.count("step");
  record.updates = reader.count("updates");
  record.skipped_steps = reader.count("skipped_steps");
  if (user.contains("loss_scaling")) record.loss_scaling = scaling_of(reader.object("loss_scaling"));
  record.position = {.epoch = data.count("epoch"), .samples = data.count("samples")};
  record.dataset_samples = reader.count("dataset_samples");
  record.world_size = reader.count("world_size");
  if (user.contains("data_checksum")) record.data_checksum = reader.get<std::string>("data_checksum");
  reader.object("config");
  record.config = reader.part("config");
  return record;
}

// Recognizes records of this program by their keys.
bool is_own(const json& user) {
  return user.is_object() && (user.contains("updates") || user.contains("data") || user.contains("config"));
}

const json& optimizer_part(const json& state, const char* key) {
  static const json none = json::object();
  const auto optimizer = state.find("optimizer");
  if (optimizer == state.end() || !optimizer->is_object() || !optimizer->contains(key)) return none;
  return optimizer->at(key);
}

// Uses the largest number of steps of any parameter: a parameter without gradients in some steps has fewer.
RunRecord foreign_record(const json& state, const std::string& source) {
  const json& leaves = optimizer_part(state, "leaves");
  FSDP_CHECK_WITH(FileError, !leaves.empty(), source,
                  ": holds no optimizer state, so that training cannot be resumed from it; to use the ",
                  "weights alone, run `fsdp convert ", source, " MODEL --to hf` and set model_path to MODEL");
  RunRecord record;
  record.is_foreign = true;
  for (const json& numbers : leaves) {
    const json step = numbers.is_object() ? numbers.value("step", json(0)) : json(0);
    const double steps = step.is_number() ? step.get<double>() : -1;
    FSDP_CHECK_WITH(FileError, steps >= 0 && steps < 9e15, source, ": a parameter's optimizer state has ",
                    formats::json_text(step), " as its step; it must be a number >= 0");
    record.step = std::max(record.step, static_cast<int64_t>(std::llround(steps)));
  }
  record.updates = record.step;
  return record;
}

}  // namespace

json to_json(const RunRecord& record) {
  json result = {{"step", record.step},
                 {"updates", record.updates},
                 {"skipped_steps", record.skipped_steps},
                 {"data", {{"epoch", record.position.epoch}, {"samples", record.position.samples}}},
                 {"dataset_samples", record.dataset_samples},
                 {"world_size", record.world_size},
                 {"data_checksum", record.data_checksum},
                 {"config", record.config}};
  if (record.loss_scaling) result["loss_scaling"] = scaling_json(*record.loss_scaling);
  return result;
}

RunRecord read_run_record(const json& state, const std::string& source) {
  const json user = state.is_object() && state.contains("user") ? state["user"] : json();
  return is_own(user) ? own_record(user, source) : foreign_record(state, source);
}

std::string options_of_groups(const json& state) {
  std::set<std::string> texts;
  for (const json& group : optimizer_part(state, "groups")) {
    if (group.is_object() && group.contains("options")) texts.insert(group["options"].dump());
  }
  return c10::Join(", ", texts);
}

std::string changed_keys(const RunRecord& then, const Config& now) {
  std::string text;
  const json current = to_json(now);
  for (const auto& [key, value] : current.items()) {
    if (key == "resume_from_checkpoint") continue;
    const auto before = then.config.find(key);
    if (before != then.config.end() && *before == value) continue;
    text += c10::str(text.empty() ? "" : ", ", key, ": ", value.dump(), ", was ",
                     before == then.config.end() ? "absent" : before->dump());
  }
  return text;
}

std::string data_difference(const RunRecord& record, const Config& config, int64_t dataset_samples,
                            const std::string& data_checksum) {
  const json current = to_json(config);
  for (const char* key : {"dataset", "max_seq_length", "max_target_length", "shuffle", "seed"}) {
    if (record.config.value(key, json()) != current.at(key)) return std::string(key) + " has changed";
  }
  if (record.dataset_samples != dataset_samples) {
    return c10::str("it has ", dataset_samples, " samples, but had ", record.dataset_samples);
  }
  const bool changed = !record.data_checksum.empty() && record.data_checksum != data_checksum;
  return changed ? "the content of " + config.data.dataset + " has changed" : "";
}

}  // namespace fsdp::trainer
