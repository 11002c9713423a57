#include "pipeline/stage_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "base/finally.h"
#include "engine/engine.h"
#include "torch_seams/graph_roots.h"

namespace fsdp::pipeline {
namespace {

// Runs `body` with operators recorded through `weights`, if it is not null.
template <typename Body>
auto recording(WeightGradients* weights, const Body& body) {
  std::optional<WeightGradients::Recording> guard;
  if (weights) guard.emplace(*weights);
  return body();
}

}  // namespace

// Collects the gradients of a micro-batch's inputs while backward runs.
class StageRunner::InputGradients {
 public:
  // Makes leaves of the inputs that want a gradient. Returns all inputs.
  static std::vector<at::Tensor> make_leaves(const std::shared_ptr<InputGradients>& self,
                                             const std::vector<ReceivedTensor>& inputs) {
    std::vector<at::Tensor> tensors;
    for (const ReceivedTensor& input : inputs) {
      tensors.push_back(input.tensor);
      if (!input.wants_gradient || !at::GradMode::is_enabled()) continue;
      tensors.back().set_requires_grad(true);
      const size_t index = self->leaves_.size();
      self->leaves_.push_back(tensors.back());
      // The leaf owns the hook, so the hook must not own the leaf.
      tensors.back().register_hook([weak = std::weak_ptr<InputGradients>(self), index](const at::Tensor& gradient) {
        if (const auto self = weak.lock()) self->add(index, gradient);
      });
    }
    self->gradients_.resize(self->leaves_.size());
    return tensors;
  }

  void begin(TakeGradients take) { take_ = std::move(take); }
  // The gradient of an input that no output depends on is zero.
  void end() {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (!gradients_[i].defined()) add(i, at::zeros_like(leaves_[i]));
    }
    if (leaves_.empty()) take_({});
  }

 private:
  void add(size_t index, const at::Tensor& gradient) {
    gradients_[index] = gradient;
    if (++count_ == leaves_.size()) take_(gradients_);
  }

  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> gradients_;
  size_t count_ = 0;
  TakeGradients take_;
};

StageRunner::StageRunner(PipelineStage stage, bool is_last) : stage_(std::move(stage)), is_last_(is_last) {}

c10::Device StageRunner::device() const { return sharded().engine().device(); }

base::TraceRecorder& StageRunner::trace() const { return sharded().engine().trace(); }

void StageRunner::check_outputs(const std::vector<at::Tensor>& outputs) const {
  TORCH_CHECK(!outputs.empty(), "stage ", index(), " returned no tensor; ",
              is_last_ ? "the last stage returns the loss first" : "a stage returns what the next one needs");
  for (size_t i = 0; i < outputs.size(); ++i) {
    TORCH_CHECK(outputs[i].defined(), "stage ", index(), ": output ", i, " of ", outputs.size(), " is undefined");
  }
  TORCH_CHECK(!is_last_ || outputs.front().numel() == 1, "the first output of the last stage, ", index(),
              ", must be the loss, of one element; it has sizes ", outputs.front().sizes());
}

std::vector<at::Tensor> StageRunner::forward(int micro_batch, const std::vector<ReceivedTensor>& inputs,
                                             bool leaves_weights) {
  auto gradients = std::make_shared<InputGradients>();
  const auto weights = leaves_weights ? std::make_shared<WeightGradients>() : nullptr;
  const std::vector<at::Tensor> tensors = InputGradients::make_leaves(gradients, inputs);
  std::vector<at::Tensor> outputs = recording(weights.get(), [&] { return stage_.forward(tensors, micro_batch); });
  check_outputs(outputs);
  if (!at::GradMode::is_enabled()) return outputs;
  Graph graph{std::move(gradients), {}, {}, {}, weights};
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    graph.roots.push_back(seams::graph_root(output));
    graph.options.push_back(output.options());
    graph.sizes.push_back(output.sizes().vec());
    if (is_last_) break;  // only the loss
  }
  graphs_[micro_batch] = std::move(graph);
  most_in_flight_ = std::max(most_in_flight_, static_cast<int>(graphs_.size()));
  return outputs;
}

const StageRunner::Graph& StageRunner::graph(int micro_batch) const {
  const auto found = graphs_.find(micro_batch);
  TORCH_CHECK(found != graphs_.end(), "stage ", index(), ": no forward pass of micro-batch ", micro_batch,
              " is waiting for its backward pass");
  return found->second;
}

std::vector<at::Tensor> StageRunner::empty_gradients(int micro_batch) const {
  const Graph& graph = this->graph(micro_batch);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < graph.roots.size(); ++i) gradients.push_back(at::empty(graph.sizes[i], graph.options[i]));
  return gradients;
}

void StageRunner::backward(int micro_batch, std::vector<at::Tensor> gradients, const BackwardOptions& options,
                           const TakeGradients& take) {
  const Graph& graph = this->graph(micro_batch);
  if (is_last_ && !graph.roots.empty()) gradients = {at::ones(graph.sizes.front(), graph.options.front())};
  TORCH_CHECK(gradients.size() == graph.roots.size(), "stage ", index(), ": ", gradients.size(), " gradients for ",
              graph.roots.size(), " outputs of micro-batch ", micro_batch);
  graph.inputs->begin(take);
  if (!graph.roots.empty()) {
    // Backward may compute parts of forward again.
    const auto run = [&] { seams::run_backward(graph.roots, gradients); };
    sharded().with_backward_options(options, [&] { recording(graph.weights.get(), run); });
  }
  graph.inputs->end();
  if (graph.weights) weights_[micro_batch] = graph.weights;
  graphs_.erase(micro_batch);
}

// Where nothing is left, the gradients of earlier passes may still have to be reduced.
void StageRunner::weight_gradients(int micro_batch, const BackwardOptions& options) {
  const auto found = weights_.find(micro_batch);
  TORCH_CHECK(found != weights_.end(), "stage ", index(), ": micro-batch ", micro_batch,
              " has had no pass for the gradients of its inputs");
  const std::shared_ptr<WeightGradients> weights = found->second;
  weights_.erase(found);
  engine::Gatherer& gatherer = sharded().engine().gatherer();
  gatherer.set_backward_needs_units(false);
  const base::Finally reset([&gatherer] { gatherer.set_backward_needs_units(true); });
  sharded().with_backward_options(options, [&] {
    if (weights->size() > 0) {
      weights->accumulate();
    } else if (options.requires_gradient_sync) {
      sharded().reduce_gradients();
    }
  });
}

void StageRunner::begin_step() {
  graphs_.clear();
  weights_.clear();
  most_in_flight_ = 0;
}

}  // namespace fsdp::pipeline
