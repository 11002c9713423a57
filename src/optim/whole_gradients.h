// Notices gradients that tensor-parallel ranks should share and do not.
#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

namespace fsdp::engine {
class Engine;
}  // namespace fsdp::engine

namespace fsdp::optim {

// The norm of this rank's shard of a FlatParameter's gradients, and the dtype in which they were computed.
struct WholeNorm {
  double norm = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Throws on all ranks if the gradients of parameters that are whole differ between the ranks that hold the parts of
// others (SplitStyle::kSharedByParts would add them up): the ranks would train different models. `norms`: of all
// FlatParameters that are no parts. `total`: the norm of all gradients. Names a parameter whose gradients differ;
// rounding is allowed for. Collective; does nothing without tensor parallelism.
void check_whole_gradients(engine::Engine& engine, const std::vector<WholeNorm>& norms, double total);

}  // namespace fsdp::optim
