// One rank's whole run.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "fsdp/communicator.h"
#include "training/rank_place.h"
#include "training/training_inputs.h"

namespace fsdp::trainer {

enum class RunEnd : uint8_t {
  kFinished,
  kTerminated,  // a signal came, and the run can be resumed
};

struct RunRequest {
  bool save_config = false;  // write output_dir/resolved_config.json
};

// Chooses the rank's device, opens model and data, meets the other ranks, trains, evaluates and saves as `config` says.
// Throws what goes wrong.
RunEnd train_rank(const Config& config, const RankEnvironment& environment, const RunRequest& request);

// The same at a place that is chosen already, with inputs that were opened.
RunEnd train_at(const Config& config, TrainingInputs inputs, const RankPlace& place, const RunRequest& request);

}  // namespace fsdp::trainer
