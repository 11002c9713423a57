// Runs the engine's own tensor operations outside the dispatch modes of the caller's operator.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::seams {

// While the guard lives, operators on this thread go straight to the back end's kernels: no autograd, no version
// counting, no inference tensors, no sharded key, no autocast, no functorch or Python mode. In-place operators do not
// bump version counters.
class CleanDispatchGuard {
 public:
  CleanDispatchGuard() : inference_(false), dispatch_(clean_keys()) {}

 private:
  static c10::impl::LocalDispatchKeySet clean_keys();

  c10::InferenceMode inference_;
  c10::impl::ForceDispatchKeyGuard dispatch_;
};

}  // namespace fsdp::seams
