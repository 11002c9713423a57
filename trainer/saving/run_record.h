// What a checkpoint of a training run keeps beside tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/batches.h"
#include "fsdp/grad_scaler.h"

namespace fsdp::trainer {

struct RunRecord {
  int64_t step = 0;           // steps that were taken
  int64_t updates = 0;        // of them, those that were not skipped: where the learning-rate schedule is
  int64_t skipped_steps = 0;  // the others
  std::optional<GradScalerState> loss_scaling = std::nullopt;
  TrainBatches::Position position = {};
  int64_t dataset_samples = 0;
  int64_t world_size = 1;
  nlohmann::json config = {};  // all keys with their values
};

nlohmann::json to_json(const RunRecord& record);
// An error that begins with `source` when it is none.
RunRecord parse_run_record(const nlohmann::json& json, const std::string& source);

// The keys whose values differ, for people: "learning_rate: 5e-05, was 0.0001", separated by ", ".
// resume_from_checkpoint is none of them.
std::string changed_keys(const RunRecord& then, const Config& now);

// Whether the record's position means the same samples in this data set, read as `config` says.
bool same_samples(const RunRecord& record, const Config& config, int64_t dataset_samples);

}  // namespace fsdp::trainer
