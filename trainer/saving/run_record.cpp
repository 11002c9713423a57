#include "saving/run_record.h"

#include <c10/util/Exception.h>

#include "config/config_reader.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

json scaling_json(const GradScalerState& state) {
  return {{"scale", state.scale}, {"growth_tracker", state.growth_tracker}};
}

GradScalerState parse_scaling(const json& json) {
  GradScalerState state;
  state.scale = json.at("scale").get<double>();
  state.growth_tracker = json.at("growth_tracker").get<int64_t>();
  return state;
}

}  // namespace

json to_json(const RunRecord& record) {
  json result = {{"step", record.step},
                 {"updates", record.updates},
                 {"skipped_steps", record.skipped_steps},
                 {"data", {{"epoch", record.position.epoch}, {"samples", record.position.samples}}},
                 {"dataset_samples", record.dataset_samples},
                 {"world_size", record.world_size},
                 {"config", record.config}};
  if (record.loss_scaling) result["loss_scaling"] = scaling_json(*record.loss_scaling);
  return result;
}

RunRecord parse_run_record(const json& json, const std::string& source) {
  RunRecord record;
  try {
    json.at("step").get_to(record.step);
    json.at("updates").get_to(record.updates);
    json.at("skipped_steps").get_to(record.skipped_steps);
    if (json.contains("loss_scaling")) record.loss_scaling = parse_scaling(json["loss_scaling"]);
    json.at("data").at("epoch").get_to(record.position.epoch);
    json.at("data").at("samples").get_to(record.position.samples);
    json.at("dataset_samples").get_to(record.dataset_samples);
    json.at("world_size").get_to(record.world_size);
    record.config = json.at("config");
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, source, ": is no checkpoint of `fsdp train`: ", error.what());
  }
  const auto& at = record.position;
  TORCH_CHECK(record.step >= 0 && record.updates >= 0 && at.epoch >= 0 && at.samples >= 0 && record.config.is_object(),
              source, ": is no checkpoint of `fsdp train`: a number is negative, or \"config\" is no object");
  return record;
}

std::string changed_keys(const RunRecord& then, const Config& now) {
  std::string text;
  const json current = to_json(now);
  for (const auto& [key, value] : current.items()) {
    if (key == "resume_from_checkpoint") continue;
    const auto before = then.config.find(key);
    if (before != then.config.end() && *before == value) continue;
    text += c10::str(text.empty() ? "" : ", ", key, ": ", value.dump(), ", was ",
                     before == then.config.end() ? "not there" : before->dump());
  }
  return text;
}

bool same_samples(const RunRecord& record, const Config& config, int64_t dataset_samples) {
  const json current = to_json(config);
  for (const char* key : {"dataset", "max_seq_length", "max_target_length", "shuffle", "seed"}) {
    if (record.config.value(key, json()) != current.at(key)) return false;
  }
  return record.dataset_samples == dataset_samples;
}

}  // namespace fsdp::trainer
