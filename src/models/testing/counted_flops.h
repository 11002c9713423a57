// For tests: counts FLOPs as they run.
#pragma once

#include <ATen/Context.h>

#include <string>

#include "torch_seams/operator_interception.h"

namespace fsdp::models {

// Counts the FLOPs of the matrix products that run during its lifetime. Disables flash attention, so that attention
// consists of matrix products.
class CountedFlops : public seams::OperatorInterceptor {
 public:
  CountedFlops() { at::globalContext().setSDPUseFlash(false); }
  ~CountedFlops() { at::globalContext().setSDPUseFlash(true); }
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) override {
    const std::string& name = op.schema().name();
    if (name == "aten::mm" || name == "aten::bmm") {
      const int64_t columns = stack.back().toTensor().size(-1);
      count_ += 2.0 * static_cast<double>(stack[stack.size() - 2].toTensor().numel() * columns);
    }
    run();
  }
  double count() const { return count_; }

 private:
  double count_ = 0;
  seams::InterceptionGuard guard_{*this};
};

}  // namespace fsdp::models
