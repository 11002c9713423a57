// Intercepts the operators that a thread calls, below autograd or above it.
//
// The dispatch key Fake lies between autograd and the back ends' kernels, and LibTorch up to 2.13 does not use it
// itself. While the key is included for a thread, a fallback on it sees each operator after autograd has recorded it.
// It does not see the operators that a kernel calls in turn. TESTING_ONLY_GenericMode does the same above autograd and
// above the key of sharded parameters: its fallback sees operators as they are called, such as `linear`, and what they
// return is recorded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

namespace fsdp::seams {

class OperatorInterceptor {
 public:
  virtual ~OperatorInterceptor() = default;
  // On entry, the operator's arguments are on top of the stack. The function must replace them by the operator's
  // results, by calling `run` or in another way.
  virtual void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) = 0;
};

enum class InterceptionLevel { kBelowAutograd, kAboveAutograd };

// Throws an error with the reason if this LibTorch uses the level's key itself.
void require_interception(InterceptionLevel level = InterceptionLevel::kBelowAutograd);

// While the guard lives, operators of this thread go through the interceptor; `run` passes them on to the interceptor
// that was installed before it at this level.
class InterceptionGuard {
 public:
  explicit InterceptionGuard(OperatorInterceptor& interceptor,
                             InterceptionLevel level = InterceptionLevel::kBelowAutograd);
  ~InterceptionGuard();
  InterceptionGuard(const InterceptionGuard&) = delete;
  InterceptionGuard& operator=(const InterceptionGuard&) = delete;

  struct Link {
    OperatorInterceptor* interceptor;
    const Link* next;
  };

 private:
  const InterceptionLevel level_;
  Link link_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace fsdp::seams
