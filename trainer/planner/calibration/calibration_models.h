// The models that are trained to find out how fast CPUs are.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "config/config.h"

namespace fsdp::planner {

// Returns runs of small models of five kinds, in two to four sizes each, in steps of some hundredths of a second:
// decoders, an encoder with a decoder, transformers over images, and convolutions.
std::vector<trainer::Config> calibration_runs(at::ScalarType dtype);

// Returns runs for all ranks together, in fp32.
std::vector<trainer::Config> sharded_calibration_runs();

}  // namespace fsdp::planner
