#include "deferred/operator_call.h"

#include <algorithm>

#include "base/visit_tensors.h"
#include "torch_seams/dispatch_key.h"

namespace fsdp::deferred {

bool is_host_scalar(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

OperatorCall::OperatorCall(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
    : op_(op),
      arguments_(stack.data() + stack.size() - op.schema().arguments().size()),
      num_arguments_(op.schema().arguments().size()) {
  for (size_t i = 0; i < num_arguments_; ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    base::visit_tensors(argument(i), [&](const at::Tensor& tensor) {
      if (tensor.defined()) tensors_.push_back({tensor, find(tensor), alias && alias->isWrite()});
    });
  }
}

bool OperatorCall::any_deferred() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) { return one.deferred; });
}
bool OperatorCall::any_recorded() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& one) { return one.deferred && !one.deferred->resident; });
}
bool OperatorCall::any_sharded() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& one) { return !one.deferred && seams::has_sharded_key(one.tensor); });
}
bool OperatorCall::writes_ordinary() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) { return !one.deferred && one.written; });
}
bool OperatorCall::reads_ordinary() const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [](const auto& one) { return !one.deferred && !one.written && !is_host_scalar(one.tensor); });
}
bool OperatorCall::writes_deferred() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) { return one.deferred && one.written; });
}

std::optional<size_t> OperatorCall::given(const char* name) const {
  const auto& arguments = op_.schema().arguments();
  for (size_t i = 0; i < num_arguments_; ++i) {
    if (arguments[i].name() == name && !argument(i).isNone()) return i;
  }
  return std::nullopt;
}

c10::Device OperatorCall::device() const {
  if (auto position = given("device"); position && argument(*position).isDevice()) {
    return argument(*position).toDevice();
  }
  if (op_.operator_name() == c10::OperatorName("aten::to", "other")) return tensors_.back().tensor.device();
  return tensors_.empty() ? c10::Device(c10::kCPU) : tensors_.front().tensor.device();
}

std::vector<at::Tensor> OperatorCall::recorded() const {
  std::vector<at::Tensor> result;
  for (const TensorArgument& one : tensors_) {
    if (one.deferred && !one.deferred->resident) result.push_back(one.tensor);
  }
  return result;
}

}  // namespace fsdp::deferred
