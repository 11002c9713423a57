// Sees the operators that a thread calls, below autograd.
//
// The dispatch key Fake lies between autograd and the back ends' kernels, and LibTorch up to 2.13 leaves it to others.
// While it is included for a thread, a fallback on it sees each operator after autograd has recorded it; operators that
// a kernel calls in turn are not seen.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

namespace fsdp::seams {

class OperatorInterceptor {
 public:
  virtual ~OperatorInterceptor() = default;
  // The operator's arguments are on top of the stack, and are to be replaced by its results: by `run`, or otherwise.
  virtual void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) = 0;
};

// Throws, with the reason, if this LibTorch keeps the key for itself.
void require_interception();

// While it lives, operators of this thread go through the interceptor; `run` goes on to the one installed before it.
class InterceptionGuard {
 public:
  explicit InterceptionGuard(OperatorInterceptor& interceptor);
  ~InterceptionGuard();
  InterceptionGuard(const InterceptionGuard&) = delete;
  InterceptionGuard& operator=(const InterceptionGuard&) = delete;

  struct Link {
    OperatorInterceptor* interceptor;
    const Link* next;
  };

 private:
  Link link_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace fsdp::seams
