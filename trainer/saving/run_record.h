// The record of a training run that a checkpoint stores in addition to tensors.
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
  int64_t step = 0;           // number of steps taken
  int64_t updates = 0;        // steps that were not skipped: the position in the learning-rate schedule
  int64_t skipped_steps = 0;  // step - updates
  std::optional<GradScalerState> loss_scaling = std::nullopt;
  TrainBatches::Position position = {};
  int64_t dataset_samples = 0;
  std::string data_checksum = {};  // data/data_checksum.h; empty: an older checkpoint without a checksum
  int64_t world_size = 1;
  nlohmann::json config = {};  // all config keys with their values
  // Whether another program, such as PyTorch, trained the model (`fsdp convert`). The checkpoint then only tells how
  // many steps the optimizer took; they are stored as `step` and `updates`.
  bool is_foreign = false;
};

nlohmann::json to_json(const RunRecord& record);
// Reads the record from `state`, the Manifest::state of a checkpoint. An error begins with `source` and names the part
// that is missing or wrong: an incomplete record of this program or, for another program, missing optimizer state.
RunRecord read_run_record(const nlohmann::json& state, const std::string& source);

// Returns the options of the parameter groups in Manifest::state as text for people: each distinct JSON object once,
// separated by ", ".
std::string options_of_groups(const nlohmann::json& state);

// Returns the keys whose values differ as text for people, such as "learning_rate: 5e-05, was 0.0001", separated by ",
// ". Leaves out resume_from_checkpoint.
std::string changed_keys(const RunRecord& then, const Config& now);

// Returns why the record's position refers to other samples in this data set, read as `config` says, or an empty string
// if it refers to the same samples.
std::string data_difference(const RunRecord& record, const Config& config, int64_t dataset_samples,
                            const std::string& data_checksum);

}  // namespace fsdp::trainer
