// Makes cases from seeds.
#pragma once

#include <cstdint>

#include "fuzz_training/case.h"

namespace fsdp::fuzz {

// Returns the case of this seed, always the same one, to which no rule objects. known_defects: cases that meet a known
// defect may be returned too.
Case case_of_seed(uint64_t seed, bool known_defects);

}  // namespace fsdp::fuzz
