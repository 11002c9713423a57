// For tests: counts the calls of an operator.
#pragma once

#include <string>
#include <utility>

#include "torch_seams/operator_interception.h"

namespace fsdp::models {

// Counts the calls in this thread during its lifetime. `name`: such as "aten::silu".
class OperatorCalls : public seams::OperatorInterceptor {
 public:
  explicit OperatorCalls(std::string name) : name_(std::move(name)), guard_(*this) {}
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack&, c10::function_ref<void()> run) override {
    count_ += op.schema().name() == name_;
    run();
  }
  int count() const { return count_; }

 private:
  std::string name_;
  int count_ = 0;
  seams::InterceptionGuard guard_;
};

}  // namespace fsdp::models
