// Makes cases from seeds.
#pragma once

#include <cstdint>

#include "fuzz_training/case.h"

namespace fsdp::fuzz {

// The case of this seed, always the same one, to which no rule objects. `known_defects`: also those that meet one.
Case case_of_seed(uint64_t seed, bool known_defects);

}  // namespace fsdp::fuzz
