// Runs recorded operators for real.
#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "deferred/recorded_operator.h"

namespace fsdp::deferred {

// A storage as it is after `writer`.
struct StorageState {
  c10::Storage twin;
  OperatorPtr writer;  // null: never written, its elements are arbitrary
  c10::Device device;
};

// The memory of these storages, with their values. Runs each operator that is needed once, in the order of recording,
// and gives memory back as soon as nothing needs it any more.
std::vector<c10::Storage> replay(const std::vector<StorageState>& wanted);

// Runs an operator that draws random numbers for the sake of the draw alone. `begin` is called right before it.
void draw_into_scratch(const RecordedOperator& op, const std::function<void()>& begin);

// A tensor over `storage` with the shape of `shape`.
at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& shape);

}  // namespace fsdp::deferred
