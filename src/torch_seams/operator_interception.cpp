#include "torch_seams/operator_interception.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
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

// Created when the library is loaded, when no other thread dispatches. The registration fails if LibTorch has a
// fallback of its own.
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

struct CountSines : OperatorInterceptor {
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack&, c10::function_ref<void()> run) override {
    count += op.schema().name() == "aten::sin";
    run();
  }
  int count = 0;
};

// Checks that each operator is seen once, and that autograd has recorded it.
bool works() {
  c10::InferenceMode no_inference(false);
  at::AutoGradMode gradients(true);
  const at::Tensor leaf = at::zeros({2}).set_requires_grad(true);
  CountSines sines;
  at::Tensor result;
  {
    InterceptionGuard guard(sines);
    result = leaf.sin();
  }
  return sines.count == 1 && result.requires_grad() && leaf.sin().requires_grad() && sines.count == 1;
}

}  // namespace

void require_interception() {
  TORCH_CHECK(registration.error.empty(), "fsdp: this LibTorch (", TORCH_VERSION,
              ") leaves no dispatch key to see operators below autograd: ", registration.error);
  static const bool checked = works();
  TORCH_CHECK(checked, "fsdp: this LibTorch (", TORCH_VERSION, ") does not show operators below autograd");
}

InterceptionGuard::InterceptionGuard(OperatorInterceptor& interceptor)
    : link_{&interceptor, chain}, include_(kInterceptionKey) {
  chain = &link_;
}

InterceptionGuard::~InterceptionGuard() { chain = link_.next; }

}  // namespace fsdp::seams
