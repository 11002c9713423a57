#include "recompute/transient_graph.h"

#include <ATen/core/grad_mode.h>

#include "base/visit_tensors.h"
#include "torch_seams/saved_tensors.h"

namespace fsdp::recompute {
namespace {

thread_local int transient_graphs = 0;

}  // namespace

TransientGraph::TransientGraph() { ++transient_graphs; }
TransientGraph::~TransientGraph() { --transient_graphs; }
bool TransientGraph::is_recorded() { return transient_graphs > 0; }

void TransientGraph::discard_saved_tensors() {
  if (!at::GradMode::is_enabled()) {
    return;  // inside a function that creates its own node, which gets its results only at the end
  }
  for (const WeakTensor& result : latest_) {
    if (auto tensor = result.lock()) seams::discard_saved_tensors(at::Tensor(std::move(tensor)));
  }
  latest_.clear();
}

void TransientGraph::note_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    base::visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.defined()) latest_.emplace_back(tensor.getIntrusivePtr());
    });
  }
}

}  // namespace fsdp::recompute
