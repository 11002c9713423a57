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

using Level = InterceptionLevel;

constexpr c10::DispatchKey key_of(Level level) {
  return level == Level::kBelowAutograd ? c10::DispatchKey::Fake : c10::DispatchKey::TESTING_ONLY_GenericMode;
}

// The interceptors of this thread, the newest first.
const InterceptionGuard::Link*& chain(Level level) {
  thread_local const InterceptionGuard::Link* below = nullptr;
  thread_local const InterceptionGuard::Link* above = nullptr;
  return level == Level::kBelowAutograd ? below : above;
}

void run_through(const InterceptionGuard::Link* link, const c10::OperatorHandle& op, c10::DispatchKeySet below,
                 torch::jit::Stack& stack) {
  if (!link) {
    op.redispatchBoxed(below, &stack);
    return;
  }
  link->interceptor->intercept(op, stack, [&] { run_through(link->next, op, below, stack); });
}

template <Level level>
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr c10::DispatchKey kKey = key_of(level);
  c10::impl::ExcludeDispatchKeyGuard nested(kKey);
  run_through(chain(level), op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), *stack);
}

// Created when the library is loaded, when no other thread dispatches. The registration fails if LibTorch has a
// fallback of its own.
template <Level level>
struct Registration {
  std::unique_ptr<torch::Library> library;
  std::string error;

  Registration() {
    try {
      library = std::make_unique<torch::Library>(torch::Library::IMPL, "_", key_of(level), __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback<level>>());
    } catch (const c10::Error& refused) {
      error = refused.what_without_backtrace();
    }
  }
};

const Registration<Level::kBelowAutograd> below_autograd;
const Registration<Level::kAboveAutograd> above_autograd;

struct CountSines : OperatorInterceptor {
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) override {
    const bool is_sine = op.schema().name() == "aten::sin";
    run();
    count += is_sine;
    if (is_sine) recorded = stack.back().toTensor().requires_grad();
  }
  int count = 0;
  bool recorded = false;  // by autograd, when the interceptor saw the result
};

// Checks that each operator is seen once, and whether autograd has recorded its result by then.
bool works(Level level) {
  c10::InferenceMode no_inference(false);
  at::AutoGradMode gradients(true);
  const at::Tensor leaf = at::zeros({2}).set_requires_grad(true);
  CountSines sines;
  at::Tensor result;
  {
    InterceptionGuard guard(sines, level);
    result = leaf.sin();
  }
  return sines.count == 1 && sines.recorded == (level == Level::kAboveAutograd) && result.requires_grad() &&
         leaf.sin().requires_grad() && sines.count == 1;
}

}  // namespace

void require_interception(Level level) {
  const bool is_below = level == Level::kBelowAutograd;
  const char* where = is_below ? "below autograd" : "above autograd";
  const std::string& error = is_below ? below_autograd.error : above_autograd.error;
  TORCH_CHECK(error.empty(), "fsdp: this LibTorch (", TORCH_VERSION, ") leaves no dispatch key to see operators ",
              where, ": ", error);
  static const bool checked[] = {works(Level::kBelowAutograd), works(Level::kAboveAutograd)};
  TORCH_CHECK(checked[is_below ? 0 : 1], "fsdp: this LibTorch (", TORCH_VERSION, ") does not show operators ", where);
}

InterceptionGuard::InterceptionGuard(OperatorInterceptor& interceptor, InterceptionLevel level)
    : level_(level), link_{&interceptor, chain(level)}, include_(key_of(level)) {
  chain(level_) = &link_;
}

InterceptionGuard::~InterceptionGuard() { chain(level_) = link_.next; }

}  // namespace fsdp::seams
