// One rank's whole run.
#pragma once

#include "config/config.h"
#include "fsdp/communicator.h"

namespace fsdp::trainer {

struct RunRequest {
  bool save_config = false;  // write output_dir/resolved_config.json
};

// Opens model and data, meets the other ranks, trains, evaluates and saves as `config` says. Throws what goes
// wrong.
void train_rank(const Config& config, const RankEnvironment& environment, const RunRequest& request);

}  // namespace fsdp::trainer
