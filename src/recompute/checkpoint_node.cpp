#include "recompute/checkpoint_node.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "torch_seams/graph_recording.h"

namespace fsdp::recompute {
namespace {

using torch::autograd::variable_list;

thread_local bool recomputing = false;

class RecomputingGuard {
 public:
  RecomputingGuard() : before_(std::exchange(recomputing, true)) {}
  ~RecomputingGuard() { recomputing = before_; }
  RecomputingGuard(const RecomputingGuard&) = delete;
  RecomputingGuard& operator=(const RecomputingGuard&) = delete;

 private:
  bool before_;
};

void check_backward_fits() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "fsdp: double backward (create_graph) through a checkpointed function is not supported: its activations "
              "are not part of the graph. Call the function without checkpointing where create_graph is needed");
  TORCH_CHECK(
      torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
      "fsdp: torch::autograd::grad, and backward with a list of inputs, cannot go through a checkpointed "
      "function: it accumulates gradients of all parameters that it uses. Call backward() and read .grad(), or call "
      "the function without checkpointing");
}

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().set_requires_grad(tensor.requires_grad()) : tensor);
  }
  return result;
}

// Propagates gradients to the leaves from which the results were computed.
void nested_backward(const std::vector<at::Tensor>& results, const variable_list& gradients) {
  variable_list roots, root_gradients;
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined() && results[i].requires_grad() && gradients[i].defined()) {
      roots.push_back(results[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
}

}  // namespace

CheckpointNode::Description::Description(const at::Tensor& result) : defined(result.defined()) {
  if (defined) {
    sizes = result.sizes().vec();
    dtype = result.scalar_type();
    device = result.device();
  }
}

std::string CheckpointNode::Description::str() const {
  return defined ? c10::str(dtype, " ", at::IntArrayRef(sizes), " on ", device) : "undefined";
}

CheckpointNode::CheckpointNode(const CheckpointOptions& options, TensorsFunction function,
                               const std::vector<at::Tensor>& inputs)
    : save_ops_(options.save_ops), function_(std::move(function)), autocast_(inputs) {
  for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  std::vector<at::Generator> generators;
  if (options.preserve_rng_state) {
    generators = generators_for(inputs, options.generators);
    random_.emplace(generators);
  }
  if (save_ops_.selection()) kept_.emplace(*save_ops_.selection(), std::move(generators));
}

std::vector<at::Tensor> CheckpointNode::first_run(const std::vector<at::Tensor>& inputs) {
  NoAutocastCacheGuard no_cache;
  if (kept_) {
    Recorder recorder(*kept_);
    seams::InterceptionGuard interception(recorder);
    return function_(detached(inputs));
  }
  const seams::GraphRecordedLater later;
  at::NoGradGuard no_grad;
  return function_(inputs);
}

std::vector<at::Tensor> CheckpointNode::run_forward(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> results = first_run(inputs);
  for (at::Tensor& result : results) {
    results_.emplace_back(result);
    // Does not return the function's own tensor, which may be an input, a parameter or a view of one.
    result = result.defined() ? result.detach() : result;
  }
  if (kept_) kept_->watch(results);
  return results;
}

variable_list CheckpointNode::apply(variable_list&& gradients) {
  check_backward_fits();
  variable_list input_gradients(inputs_.size());
  if (std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& each) { return each.defined(); })) {
    return input_gradients;
  }
  const std::vector<at::Tensor> inputs = detached(unpack_inputs());
  nested_backward(recompute(inputs), gradients);
  for (size_t i = 0; i < inputs.size(); ++i) input_gradients[i] = inputs[i].defined() ? inputs[i].grad() : at::Tensor();
  return input_gradients;
}

std::vector<at::Tensor> CheckpointNode::unpack_inputs() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  return inputs;
}

std::vector<at::Tensor> CheckpointNode::recompute(const std::vector<at::Tensor>& inputs) {
  AmbientGuard ambient(random_, autocast_);
  NoAutocastCacheGuard no_cache;
  at::AutoGradMode record_graph(true);
  RecomputingGuard recomputing_now;
  std::vector<at::Tensor> results;
  if (kept_) {
    kept_->check_versions();
    Replayer replayer(*kept_);
    seams::InterceptionGuard interception(replayer);
    results = function_(inputs);
    replayer.finish();
  } else {
    results = function_(inputs);
  }
  check_same(results);
  return results;
}

void CheckpointNode::check_same(const std::vector<at::Tensor>& results) const {
  const char* what = "fsdp: a checkpointed function did not do the same in recomputation as in forward: ";
  TORCH_CHECK(results.size() == results_.size(), what, "it returned ", results_.size(), " tensor(s) in forward, and ",
              results.size(), " in recomputation");
  for (size_t i = 0; i < results.size(); ++i) {
    const Description now(results[i]);
    TORCH_CHECK(now == results_[i], what, "result ", i, " was ", results_[i].str(), " in forward, and is ", now.str(),
                " in recomputation");
  }
}

void CheckpointNode::release_variables() {
  TensorsFunction function;  // destroyed without the lock, as it may own modules and tensors
  std::lock_guard lock(mutex_);
  for (auto& input : inputs_) input.reset_data();
  if (kept_) kept_->clear();
  std::swap(function, function_);
  released_ = true;
}

}  // namespace fsdp::recompute

namespace fsdp {

bool is_recomputing() { return recompute::recomputing; }

}  // namespace fsdp
