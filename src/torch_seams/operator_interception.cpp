#include "torch_seams/operator_interception.h"

#include <torch/library.h>
#include <torch/version.h>

#include <memory>
#include <string>

namespace fsdp::seams {
namespace {

constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::Fake;

thread_local const InterceptionGuard::Link* chain = nullptr;

void run_through(const InterceptionGuard::Link* link, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                 torch::jit::Stack& stack) {
  if (!link) {
    op.redispatchBoxed(below, &stack);
    return;
  }
  link->interceptor->intercept(op, stack, [&] { run_through(link->next, op, below, stack); });
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard nested(kInterceptionKey);
  run_through(chain, op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey), *stack);
}

// Made when the library is loaded, when no other thread dispatches. A LibTorch with a fallback of its own refuses.
struct Registration {
  std::unique_ptr<torch::Library> library;
  std::string error;

  Registration() {
    try {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kInterceptionKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    } catch (const c10::Error& refused) {
      error = refused.what_without_backtrace();
    }
  }
};

const Registration registration;

}  // namespace

void require_interception() {
  TORCH_CHECK(registration.error.empty(), "fsdp: this LibTorch (", TORCH_VERSION,
              ") leaves no dispatch key to see operators below autograd: ", registration.error);
}

InterceptionGuard::InterceptionGuard(OperatorInterceptor& interceptor)
    : link_{&interceptor, chain}, include_(kInterceptionKey) {
  chain = &link_;
}

InterceptionGuard::~InterceptionGuard() { chain = link_.next; }

}  // namespace fsdp::seams
