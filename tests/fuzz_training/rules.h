// Rules that decide which cases make sense.
#pragma once

#include <optional>
#include <string>

#include "fuzz_training/case.h"

namespace fsdp::fuzz {

// Returns why this case cannot be run: the library refuses it on purpose (docs/limitations.md), or plain LibTorch does,
// or one process computes something else by design. Returns nothing if the ranks must produce the same results as one
// process.
std::optional<std::string> objection(const Case& training);

// Returns how far values may differ from those of one process, absolutely and in proportion to a tensor's largest
// value. The reasons for differences are sums in another order, which normalisations of few and nearly equal values
// amplify, and narrower dtypes.
double tolerance(const Case& training);

// Returns the known defect that this case meets, if there is one. Such cases are left out until the defect is fixed, so
// that other defects are found. No defect may be listed in a release.
std::optional<std::string> known_defect(const Case& training);

}  // namespace fsdp::fuzz
