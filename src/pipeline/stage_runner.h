// Runs the passes of one stage.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/trace_recorder.h"
#include "fsdp/backward_options.h"
#include "fsdp/pipeline.h"
#include "pipeline/tensor_lists.h"
#include "pipeline/weight_gradients.h"

namespace fsdp::pipeline {

// A forward pass records a graph for its micro-batch, which the backward pass, or that for the gradients of inputs,
// uses up. Of the outputs, only the roots of their graph are kept in between.
class StageRunner {
 public:
  // Receives the gradients of the inputs that want one, in their order, as soon as all are there: inside the backward
  // pass, before its end, where the ranks of a stage may wait for one another.
  using TakeGradients = std::function<void(std::vector<at::Tensor> gradients)>;

  StageRunner(PipelineStage stage, bool is_last);

  int index() const { return stage_.index; }
  ShardedModule& sharded() const { return *stage_.sharded; }
  c10::Device device() const;
  base::TraceRecorder& trace() const;

  // Returns the outputs. They are part of the graph that is kept if gradients are recorded. `leaves_weights`: the
  // micro-batch gets passes for the gradients of inputs and of weights, one after the other.
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<ReceivedTensor>& inputs, bool leaves_weights);
  // Allocates memory for the gradients that the backward pass takes: of the outputs that require one, in their order.
  std::vector<at::Tensor> empty_gradients(int micro_batch) const;
  // `gradients`: as above; none for the last stage, whose loss has the gradient 1. If forward was told that weights are
  // left, this is the pass for the gradients of the inputs.
  void backward(int micro_batch, std::vector<at::Tensor> gradients, const BackwardOptions& options,
                const TakeGradients& take);
  void weight_gradients(int micro_batch, const BackwardOptions& options);
  // Discards the graphs that an error has left, and starts the count anew.
  void begin_step();
  int most_in_flight() const { return most_in_flight_; }

 private:
  class InputGradients;
  struct Graph {
    std::shared_ptr<InputGradients> inputs;
    std::vector<torch::autograd::Edge> roots;
    std::vector<at::TensorOptions> options;  // of the roots' tensors
    std::vector<std::vector<int64_t>> sizes;
    std::shared_ptr<WeightGradients> weights;  // null if backward computes their gradients
  };

  void check_outputs(const std::vector<at::Tensor>& outputs) const;
  const Graph& graph(int micro_batch) const;

  const PipelineStage stage_;
  const bool is_last_;
  // By micro-batch:
  std::map<int, Graph> graphs_;
  std::map<int, std::shared_ptr<WeightGradients>> weights_;  // whose gradients are left
  int most_in_flight_ = 0;
};

}  // namespace fsdp::pipeline
