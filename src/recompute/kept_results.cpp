#include "recompute/kept_results.h"

#include <ATen/core/List.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "base/visit_tensors.h"

namespace fsdp::recompute {
namespace {

// Returns an alias with its own version counter, for autograd to record.
at::Tensor fresh_alias(const at::Tensor& tensor) {
  return !tensor.defined() ? tensor
                           : at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
                                 c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.is_alias_of(b);
}

}  // namespace

KeptResults::Versioned::Versioned(const at::Tensor& result)
    : tensor(result.defined() ? result.tensor_data() : result), version(tensor.defined() ? tensor._version() : 0) {}

KeptResults::Result KeptResults::keep(const c10::IValue& value) {
  Result result;
  base::visit_tensors(value, [&](const at::Tensor& tensor) { result.tensors.emplace_back(tensor); });
  result.is_list = value.isTensorList();
  if (result.tensors.empty() && !result.is_list) result.other = value;
  return result;
}

c10::IValue KeptResults::hand_out(const Result& result) {
  if (result.is_list) {
    c10::List<at::Tensor> tensors;
    for (const Versioned& kept : result.tensors) tensors.push_back(fresh_alias(kept.tensor));
    return tensors;
  }
  return result.tensors.empty() ? result.other : c10::IValue(fresh_alias(result.tensors.front().tensor));
}

template <typename Visit>
void KeptResults::visit_kept(const Visit& visit) {
  for (Call& call : calls_) {
    for (Result& result : call.results) {
      for (Versioned& kept : result.tensors) visit(kept);
    }
  }
}

void KeptResults::record(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) {
  run();
  Call call{op.operator_name()};
  const size_t count = op.schema().returns().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) call.results.push_back(keep(stack[i]));
  if (!generators_.empty() && op.hasTag(at::Tag::nondeterministic_seeded)) call.random.emplace(generators_);
  calls_.push_back(std::move(call));
}

void KeptResults::replay(size_t index, const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  TORCH_CHECK(index < calls_.size() && calls_[index].name == op.operator_name(),
              "fsdp: a checkpointed function did not do the same in recomputation as in forward: its call ", index,
              " to an operator with kept results is ", op.operator_name(), ", but was ",
              index < calls_.size() ? toString(calls_[index].name) : "absent", " in forward");
  const Call& call = calls_[index];
  stack.resize(stack.size() - op.schema().arguments().size());
  for (const Result& result : call.results) stack.push_back(hand_out(result));
  if (call.random) call.random->restore();
}

void KeptResults::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite()) continue;
    base::visit_tensors(stack[stack.size() - arguments.size() + i], [&](const at::Tensor& written) {
      visit_kept([&](Versioned& kept) {
        if (shares_memory(kept.tensor, written)) kept = Versioned(kept.tensor.clone());
      });
    });
  }
}

void KeptResults::watch(const std::vector<at::Tensor>& results) {
  for (const at::Tensor& result : results) {
    bool shared = false;
    visit_kept([&](const Versioned& kept) { shared = shared || shares_memory(kept.tensor, result); });
    if (shared) watched_.emplace_back(result);
  }
}

void KeptResults::check_versions() const {
  const auto check = [](const Versioned& kept) {
    TORCH_CHECK(!kept.tensor.defined() || kept.tensor._version() == kept.version,
                "fsdp: a result that a checkpointed function keeps for recomputation (of shape ", kept.tensor.sizes(),
                ") was written to after the function ended; write to a copy of it, or do not keep it");
  };
  for (const Versioned& watched : watched_) check(watched);
  for (const Call& call : calls_) {
    for (const Result& result : call.results) {
      for (const Versioned& kept : result.tensors) check(kept);
    }
  }
}

void KeptResults::clear() {
  calls_.clear();
  watched_.clear();
}

void Recorder::intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) {
  graph_.discard_saved_tensors();
  if (kept_.selects(op)) {
    kept_.record(op, stack, run);
  } else {
    kept_.before(op, stack);
    run();
  }
  graph_.note_results(op, stack);
}

void Replayer::intercept(const c10::OperatorHandle& op, torch::jit::Stack& stack, c10::function_ref<void()> run) {
  if (kept_.selects(op)) {
    kept_.replay(next_++, op, stack);
  } else {
    kept_.before(op, stack);
    run();
  }
}

void Replayer::finish() const {
  TORCH_CHECK(next_ == kept_.size(),
              "fsdp: a checkpointed function did not do the same in recomputation as in forward: it called operators "
              "whose results are kept ",
              kept_.size(), " times in forward, and ", next_, " times in recomputation");
}

}  // namespace fsdp::recompute
