// Messages beside the passes: on a device with streams, those of one communicator run on a stream of their own.
//
// [Note: messages on streams]
// Over NCCL, a stream that sends stands still until the receiver takes the message, and one that receives until the
// sender has it. On the stream that computes, a receive that is issued early would hold up the passes before its use,
// and two ranks that both send first would wait for each other for ever. So messages have streams of their own, and all
// ranks issue them in one order, that of the schedule, which places a receive at the moment of its send: the earliest
// message that is not done is the next one of both its ranks. The host learns the sizes of activations from the
// sender's host, since it would have to wait for the device otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/device_stream.h"
#include "fsdp/communicator.h"

namespace fsdp::pipeline {

// Threads: one at a time.
class MessageStream {
 public:
  explicit MessageStream(std::shared_ptr<Communicator> group) : group_(std::move(group)) {}

  const std::shared_ptr<Communicator>& group() const { return group_; }

  // Sends a tensor that the current stream has made. It must not be written afterwards. On a device with streams it is
  // kept until four later ones have been sent; then the current stream waits until it has left.
  void send(const at::Tensor& tensor, int to, const CollectiveId& id);
  // Receives into memory that the current stream has allocated. The stream that waits for the result may read it.
  std::unique_ptr<Work> recv(const at::Tensor& output, int from, const CollectiveId& id);

  // Makes the current stream wait for all sends, and releases their tensors.
  void clear() { sent_.clear(); }

 private:
  struct Sent {
    at::Tensor tensor;
    std::unique_ptr<Work> work;  // destroyed first: the current stream waits for it
  };
  // Returns the stream, which waits for the work of the current one.
  const c10::Stream& after_current(c10::Device device);

  std::shared_ptr<Communicator> group_;
  std::optional<c10::Stream> stream_;
  std::deque<Sent> sent_;
};

}  // namespace fsdp::pipeline
