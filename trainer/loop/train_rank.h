// One rank's whole run.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "fsdp/rank_environment.h"
#include "loop/plan_comparison.h"
#include "setup/rank_place.h"
#include "setup/training_inputs.h"

namespace fsdp::trainer {

enum class RunEnd : uint8_t {
  kFinished,
  kTerminated,  // a signal was received; the run can be resumed
};

struct RunRequest {
  bool save_config = false;  // write output_dir/resolved_config.json
  // Printed at the end beside what this run has measured; not set: nothing is measured for it.
  std::optional<PlannedFigures> plan = std::nullopt;
};

// Chooses the rank's device, opens model and data, connects to the other ranks, trains, evaluates and saves as `config`
// says. Throws all errors.
RunEnd train_rank(const Config& config, const RankEnvironment& environment, const RunRequest& request);

// Runs train_rank with a chosen place and opened inputs.
RunEnd train_at(const Config& config, TrainingInputs inputs, const RankPlace& place, const RunRequest& request);

}  // namespace fsdp::trainer
