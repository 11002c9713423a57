// Runs recorded operators.
#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "deferred/recorded_operator.h"
#include "deferred/replay_mutex.h"

namespace fsdp::deferred {

// The state of a storage after `writer` has run.
struct StorageState {
  c10::Storage twin;
  OperatorPtr writer;  // null: never written, so its elements are arbitrary
  c10::Device device;
};

// Returns the memory of these storages, with their values. Runs each operator that is needed once, in the order of
// recording, and frees memory as soon as it is not needed any more.
std::vector<c10::Storage> replay(const std::vector<StorageState>& wanted) FSDP_REQUIRES(replay_mutex);

// Runs an operator that draws random numbers only for the sake of the draw. Calls `begin` right before the operator.
void draw_into_scratch(const RecordedOperator& op, const std::function<void()>& begin) FSDP_REQUIRES(replay_mutex);

// Returns a tensor over `storage` with the shape of `shape`.
at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& shape);

}  // namespace fsdp::deferred
