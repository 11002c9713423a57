// The tensors that pass between the stages of a pipeline: activations forward, gradients backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "fsdp/pipeline_schedule.h"
#include "pipeline/tensor_lists.h"

namespace fsdp::pipeline {

// Between two stages of this rank tensors are handed over; between ranks they are sent and received when the schedule
// says so. Threads: one at a time.
class StageLinks {
 public:
  // `rank`: of this process in `group`. Collective.
  StageLinks(std::vector<int> rank_of_stage, int rank, const std::shared_ptr<Communicator>& group);

  bool is_last(int stage) const { return stage + 1 == static_cast<int>(rank_of_stage_.size()); }
  // Whether the stage before, or the next one, is on another rank.
  bool receives_inputs(int stage) const { return stage > 0 && rank_of(stage - 1) != rank_; }
  bool sends_outputs(int stage) const { return !is_last(stage) && rank_of(stage + 1) != rank_; }

  // Clears the remains of the last step, or of an error. Messages of different steps have different identities.
  void begin_step();

  // -- forward --
  void expect_inputs(int stage, int micro_batch, c10::Device device);
  // Blocks until they are there. None for the first stage.
  std::vector<ReceivedTensor> take_inputs(int stage, int micro_batch);
  // Keeps the outputs for send_outputs, or for the next stage.
  void put_outputs(int stage, int micro_batch, std::vector<at::Tensor> outputs);
  void send_outputs(int stage, int micro_batch);

  // -- backward --
  // Begins to receive the gradients of the stage's outputs into `gradients`.
  void expect_gradients(int stage, int micro_batch, std::vector<at::Tensor> gradients);
  // Blocks until they are there. None for the last stage.
  std::vector<at::Tensor> take_gradients(int stage, int micro_batch);
  // Keeps the gradients of the stage's inputs for send_gradients, or for the stage before.
  void put_gradients(int stage, int micro_batch, std::vector<at::Tensor> gradients);
  // Does nothing if they were sent.
  void send_gradients(int stage, int micro_batch);

 private:
  using Key = TensorLists::Key;
  int rank_of(int stage) const { return rank_of_stage_.at(static_cast<size_t>(stage)); }
  CollectiveId id_of_activation(int stage, int micro_batch) const;
  CollectiveId id_of_gradient(int stage, int micro_batch) const;

  const std::vector<int> rank_of_stage_;
  const int rank_;
  TensorLists lists_;
  uint64_t step_ = 0;
  std::map<Key, std::vector<at::Tensor>> outputs_;     // to be sent, by stage that made them
  std::map<Key, std::vector<ReceivedTensor>> inputs_;  // handed over, by stage that takes them
  std::map<Key, std::vector<at::Tensor>> gradients_;   // to be sent or handed over, by stage whose outputs they are of
};

}  // namespace fsdp::pipeline
