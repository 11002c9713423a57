// Presets of decoder-only transformers whose weights are published.
#pragma once

#include <vector>

#include "models/presets.h"

namespace fsdp::models {

// One preset or more of dense families in models/decoder/families.h.
std::vector<Preset> decoder_presets();

}  // namespace fsdp::models
