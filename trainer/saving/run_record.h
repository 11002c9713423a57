// The record of a training run that a checkpoint keeps beside tensors.
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
  std::string data_checksum = {};  // data/data_checksum.h; empty: an older checkpoint, which does not have it
  int64_t world_size = 1;
  nlohmann::json config = {};  // all keys with their values
  // Another program trained, such as one of PyTorch's (`fsdp convert`): of the run, only how many steps its optimizer
  // took is known, as step and updates.
  bool is_foreign = false;
};

nlohmann::json to_json(const RunRecord& record);
// Of a checkpoint, whose Manifest::state this is. An error begins with `source`, and names the part that is missing or
// wrong: a record of this program that is not whole, or, of another program, no state of an optimizer.
RunRecord read_run_record(const nlohmann::json& state, const std::string& source);

// The options of the parameter groups in Manifest::state, for people: the objects, each once, separated by ", ".
std::string options_of_groups(const nlohmann::json& state);

// The keys whose values differ, for people: "learning_rate: 5e-05, was 0.0001", separated by ", ".
// resume_from_checkpoint is none of them.
std::string changed_keys(const RunRecord& then, const Config& now);

// Why the record's position means other samples in this data set, read as `config` says; empty: it means the same.
std::string data_difference(const RunRecord& record, const Config& config, int64_t dataset_samples,
                            const std::string& data_checksum);

}  // namespace fsdp::trainer
