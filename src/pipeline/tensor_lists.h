// Lists of tensors that one rank of a pipeline sends to another: activations, of which the receiver knows nothing, and
// gradients, whose sizes it knows.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::pipeline {

// A tensor that another stage has made, and whether that stage wants its gradient back.
struct ReceivedTensor {
  at::Tensor tensor;
  bool wants_gradient = false;
};

// [Note: messages without agreed sizes]
// A message with sizes and dtypes goes ahead of activations, so micro-batches may differ in length, and evaluation from
// training, without the ranks having to agree on anything before. The tensors can be received only when it is there.
// So they travel in the twin of the group: in each of the two, receives stand in the order of the sends.
//
// Threads: one at a time.
class TensorLists {
 public:
  // Collective, for the twin.
  explicit TensorLists(std::shared_ptr<Communicator> group);

  // Never waits. The tensors must not be written afterwards.
  void send_activations(const std::vector<at::Tensor>& tensors, int to, const CollectiveId& id);
  // Begins to receive a list that was sent by send_activations. `key`: names the list for take_activations. `device`:
  // of the tensors.
  using Key = std::pair<int, int>;  // stage and micro-batch
  void expect_activations(const Key& key, int from, const CollectiveId& id, c10::Device device);
  // Blocks until the list is there.
  std::vector<ReceivedTensor> take_activations(const Key& key);

  void send_gradients(const std::vector<at::Tensor>& gradients, int to, const CollectiveId& id);
  // Begins to receive into these tensors.
  void expect_gradients(const Key& key, std::vector<at::Tensor> gradients, int from, const CollectiveId& id);
  std::vector<at::Tensor> take_gradients(const Key& key);

  // Clears all that is expected, after an error.
  void clear();

 private:
  struct Expected {
    Key key;
    CollectiveId id;
    c10::Device device;
    at::Tensor description;
    std::unique_ptr<Work> described;
  };
  struct Gradients {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
  };
  std::vector<ReceivedTensor> receive(Expected& expected, int from);

  const std::shared_ptr<Communicator> group_;     // descriptions and gradients
  const std::shared_ptr<Communicator> twin_;      // activations
  std::map<int, std::deque<Expected>> expected_;  // by sender, in the order of the sends
  std::map<Key, int> senders_;
  std::map<Key, std::vector<ReceivedTensor>> arrived_;  // before they were asked for
  std::map<Key, Gradients> gradients_;
};

}  // namespace fsdp::pipeline
