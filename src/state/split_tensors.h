// Split tensors of a training run's state (fsdp/split_tensor.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "state/training_state.h"

namespace fsdp::state {

// Checks state.split. Errors name the tensor: rows that are not a part of it or not contiguous, a name that is missing
// or already taken, state of a tensor that is not among the split tensors.
void check_split_tensors(const TrainingState& state);

// The entries that are tensors, and the entries that are optimizer state.
std::vector<SplitTensor> without_state(const std::vector<SplitTensor>& split);
std::vector<SplitTensor> with_state(const std::vector<SplitTensor>& split);

// Returns the name, or NAME/STATE for optimizer state.
std::string full_name(const SplitTensor& tensor);
// Returns the elements [begin, end) of the whole tensor that `tensor` holds, row-major.
std::pair<int64_t, int64_t> held_elements(const SplitTensor& tensor);

}  // namespace fsdp::state
