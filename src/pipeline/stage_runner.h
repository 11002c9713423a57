// Runs the passes of one stage.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "fsdp/backward_options.h"
#include "fsdp/pipeline.h"
#include "pipeline/tensor_lists.h"

namespace fsdp::pipeline {

// A forward pass records a graph for its micro-batch, which the backward pass uses up. Of the outputs, only the roots
// of their graph are kept in between.
class StageRunner {
 public:
  // Receives the gradients of the inputs that want one, in their order, as soon as all are there: inside the backward
  // pass, before its end, where the ranks of a stage may wait for one another.
  using TakeGradients = std::function<void(std::vector<at::Tensor> gradients)>;

  StageRunner(PipelineStage stage, bool is_last);

  int index() const { return stage_.index; }
  ShardedModule& sharded() const { return *stage_.sharded; }
  c10::Device device() const;

  // Returns the outputs. They are part of the graph that is kept if gradients are recorded.
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<ReceivedTensor>& inputs);
  // Allocates memory for the gradients that the backward pass takes: of the outputs that require one, in their order.
  std::vector<at::Tensor> empty_gradients(int micro_batch) const;
  // `gradients`: as above; none for the last stage, whose loss has the gradient 1.
  void backward(int micro_batch, std::vector<at::Tensor> gradients, const BackwardOptions& options,
                const TakeGradients& take);
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
  };

  void check_outputs(const std::vector<at::Tensor>& outputs) const;
  const Graph& graph(int micro_batch) const;

  const PipelineStage stage_;
  const bool is_last_;
  std::map<int, Graph> graphs_;  // by micro-batch
  int most_in_flight_ = 0;
};

}  // namespace fsdp::pipeline
