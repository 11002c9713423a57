// Messages between two ranks over Gloo.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "comm/exchange.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// [Note: receipts of messages]
// Gloo sends from the memory of a tensor, which must stay until the receiver has the data, and it has no call that asks
// for that without blocking. So the receiver of a message returns a receipt, and the sender, whose caller need not wait
// for anything, looks for receipts whenever it sends or receives, and frees received messages. The sender expects the
// receipt before it sends the message, so a receipt is on its way no longer than Gloo's threads need.
class GlooSent;
class GlooReceived;

// The messages of one communicator to and from all other ranks. Threads: one at a time, as for the communicator.
class GlooMessages {
 public:
  explicit GlooMessages(std::shared_ptr<ExchangeContext> context);
  ~GlooMessages();
  GlooMessages(const GlooMessages&) = delete;
  GlooMessages& operator=(const GlooMessages&) = delete;

  // The tensor must be in host memory.
  std::unique_ptr<Work> send(const at::Tensor& tensor, int to, const CollectiveId& id);
  std::unique_ptr<Work> recv(const at::Tensor& output, int from, const CollectiveId& id);
  // Frees this rank's memory for messages that were received.
  void free_received();

 private:
  int name_of(int rank) const;  // in errors
  int own_name() const;

  std::shared_ptr<ExchangeContext> context_;
  std::vector<uint64_t> sent_count_;      // by receiver
  std::vector<uint64_t> received_count_;  // by sender
  std::deque<std::shared_ptr<GlooSent>> sent_;
  std::deque<std::shared_ptr<GlooReceived>> received_;
};

}  // namespace fsdp::comm
