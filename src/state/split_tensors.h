// Split tensors of a training run's state (fsdp/split_tensor.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "state/training_state.h"

namespace fsdp {

// Errors, which name the tensor: rows that are no part of it or not contiguous, a name that is missing or taken, state
// of a tensor that is not there.
void check_split_tensors(const TrainingState& state);

// Those that are tensors, and those that are state of an optimizer.
std::vector<SplitTensor> without_state(const std::vector<SplitTensor>& split);
std::vector<SplitTensor> with_state(const std::vector<SplitTensor>& split);

// The name, or NAME/STATE.
std::string full_name(const SplitTensor& tensor);
// Elements [begin, end) of the whole tensor, row-major.
std::pair<int64_t, int64_t> held_elements(const SplitTensor& tensor);

}  // namespace fsdp
