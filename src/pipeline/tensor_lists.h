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
#include "pipeline/message_stream.h"

namespace fsdp::pipeline {

// A tensor that another stage has made, and whether that stage wants its gradient back.
struct ReceivedTensor {
  at::Tensor tensor;
  bool wants_gradient = false;
};

// [Note: messages without agreed sizes]
// A message with sizes and dtypes goes ahead of activations, from host to host, so micro-batches may differ in length,
// and evaluation from training, without the ranks having to agree on anything before. The tensors can be received only
// when it is there. So they travel in the twin of the group: in each of the two, receives stand in the order of the
// sends. Where the device computes beside the host, the host waits for the sizes at once, and the receive begins; a
// rank that computes itself waits for them only when it needs the tensors.
//
// Threads: one at a time.
class TensorLists {
 public:
  // Collective, for the twin.
  explicit TensorLists(std::shared_ptr<Communicator> group);

  // The host never waits. The tensors must not be written afterwards.
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

  // Clears all that is expected, after an error, and releases the tensors that were sent.
  void clear();

 private:
  struct Expected {
    Key key;
    CollectiveId id;
    c10::Device device;
    at::Tensor description;
    std::unique_ptr<Work> described;
  };
  // Tensors whose receives have begun.
  template <typename Tensor>
  struct Arriving {
    std::vector<Tensor> tensors;
    std::vector<std::unique_ptr<Work>> works;
    std::vector<Tensor> take();
  };
  // Waits for the sizes of the next list of this sender.
  void receive_next(int from);

  MessageStream group_;                           // descriptions and gradients
  MessageStream twin_;                            // activations
  std::map<int, std::deque<Expected>> expected_;  // by sender, in the order of the sends
  std::map<Key, int> senders_;
  std::map<Key, Arriving<ReceivedTensor>> activations_;
  std::map<Key, Arriving<at::Tensor>> gradients_;
};

}  // namespace fsdp::pipeline
