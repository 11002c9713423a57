// The messages of one collective: headers to and from all peers, and payloads that flow only if the headers agree.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_errors.h"
#include "comm/collective_header.h"
#include "comm/failure.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/group_family.h"
#include "comm/staged/staging_pool.h"

namespace fsdp::comm {

// The state that the collectives of one communicator share.
struct ExchangeContext {
  std::shared_ptr<GlooTransport> transport;
  std::shared_ptr<GroupFamily> family;
  std::vector<int> names;  // for errors: the number of each rank in the first group of the family
  StagingPool buffers;
  uint64_t next_sequence = 0;
  std::vector<uint64_t> payload_bytes_sent;  // by rank
};

// Posting never blocks. Every failure throws an error that names this rank, the other rank and the collective, and
// marks the group as failed on all ranks. An exchange that is destroyed before it is finished leaves its messages to
// the transport.
class Exchange {
 public:
  // Takes the next sequence number and posts the headers. `flags`: identity.flag_words words, or null.
  Exchange(std::shared_ptr<ExchangeContext> context, CollectiveIdentity identity, std::vector<uint64_t>* flags);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const;
  int size() const;
  uint64_t sequence() const { return sequence_; }

  // Posts a payload of one step (0, 1, …), or nothing if the tensor is empty. Both sides must pass the same step.
  void send(int peer, const at::Tensor& payload, int step = 0);
  void receive(int peer, const at::Tensor& payload, int step = 0);

  // Memory that stays valid until the exchange is finished.
  at::Tensor staging(int64_t bytes);

  // Starts the clock of the timeout, unless it already runs.
  void start_clock();
  // Waits for all headers and compares them. Throws if another rank issues another collective. ORs the flags that the
  // headers contain.
  void agree();
  // The `numel` in the header of each rank. Valid after agree().
  const std::vector<int64_t>& numels() const { return numels_; }
  // Returns word `index` of the flags that `peer` passed. Valid after agree(). May wait for that rank's words.
  uint64_t flag_word_of(int peer, size_t index);
  // Throws unless all ranks send this rank as many elements as it expects. Valid after agree(), for a collective whose
  // flags are the send counts of each rank.
  void check_counts(const std::vector<int64_t>& expected);
  // Waits for the payloads of all steps up to this one.
  void wait_received(int step = 0);
  // Waits for the sent messages too, ORs the flags that headers do not contain, and returns the buffers to the pool.
  void finish();

 private:
  struct Receipt {
    int step;
    std::unique_ptr<Message> message;
  };

  void post_headers();
  void post_long_flags();
  void wait_for(Message& message);
  void settle_losses();
  void settle_loss(int peer);
  void release_messages();
  void check_agrees(const Header& other, int peer) const;
  void merge_flags(const std::vector<Header>& headers);
  void merge_long_flags();
  [[noreturn]] void fail_lost(const PeerLost& error) const;
  [[noreturn]] void fail_late(const PeerLate& error) const;
  [[noreturn]] void fail_interrupted(const PeerWaitInterrupted& error) const;
  [[noreturn]] void fail(const Failure& failure) const;
  int tag_of(const at::Tensor& payload, int step) const {
    return payload_tag(sequence_, identity_hash_, step, payload.nbytes());
  }
  CollectiveErrors errors() const { return {identity_, sequence_, rank(), context_->names}; }
  at::Tensor header_row(int rank) const;
  at::Tensor long_flags_row(int rank) const;

  std::shared_ptr<ExchangeContext> context_;
  GlooTransport& transport_;
  CollectiveIdentity identity_;
  uint64_t identity_hash_;
  uint64_t sequence_;
  std::vector<uint64_t>* flags_;
  std::vector<at::Tensor> buffers_;
  at::Tensor headers_;     // a row for each rank
  at::Tensor long_flags_;  // a row for each rank; undefined if all flags fit into the header
  std::vector<int64_t> numels_;
  std::vector<std::unique_ptr<Message>> received_headers_;  // by rank
  std::vector<Receipt> received_;
  std::vector<std::unique_ptr<Message>> sent_;
  GlooTransport::Clock::time_point started_{};
  size_t known_losses_ = 0;
};

}  // namespace fsdp::comm
