#include "torch_seams/gradient_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace fsdp::seams {
namespace {

using torch::autograd::variable_list;

// Compiled autograd replays a backward pass as a graph of operators, in which the effects of these hooks would be lost.
class EagerOnlyHook : public torch::autograd::FunctionPreHook {
 public:
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "fsdp: gradients of sharded parameters cannot be captured under compiled "
                                "autograd: run backward without it");
  }
};

class CaptureHook : public EagerOnlyHook {
 public:
  explicit CaptureHook(std::function<void(const at::Tensor&)> capture) : capture_(std::move(capture)) {}
  variable_list operator()(const variable_list& gradients) override {
    capture_(gradients.at(0));
    return {at::Tensor()};
  }

 private:
  std::function<void(const at::Tensor&)> capture_;
};

class TripwireHook : public EagerOnlyHook {
 public:
  explicit TripwireHook(std::function<void()> visit) : visit_(std::move(visit)) {}
  variable_list operator()(const variable_list& gradients) override {
    visit_();
    return gradients;
  }

 private:
  std::function<void()> visit_;
};

}  // namespace

std::shared_ptr<void> add_gradient_capture(const at::Tensor& tensor, std::function<void(const at::Tensor&)> capture) {
  // `auto`: the accumulator is held by an intrusive_ptr or a shared_ptr, depending on the version.
  auto accumulator = torch::autograd::impl::grad_accumulator(tensor);
  accumulator->add_pre_hook(std::make_unique<CaptureHook>(std::move(capture)));
  return std::make_shared<decltype(accumulator)>(std::move(accumulator));
}

void add_gradient_tripwire(const at::Tensor& tensor, std::function<void()> visit) {
  // Does not use add_hook, because the tripwire must be the first hook. A frozen tensor may have nowhere to put it yet.
  torch::autograd::impl::materialize_autograd_meta(tensor);
  auto& hooks = torch::autograd::impl::hooks(tensor);
  hooks.insert(hooks.begin(), std::make_unique<TripwireHook>(std::move(visit)));
}

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

bool backward_keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

void at_end_of_backward(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

}  // namespace fsdp::seams
