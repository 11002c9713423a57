// One collective in memory that the ranks of a host share: all ranks post, and read each other's payloads in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/checked/stopped_rank.h"
#include "comm/collective_errors.h"
#include "comm/collective_header.h"
#include "comm/failure.h"
#include "comm/shm/shared_heap.h"
#include "comm/shm/shm_board.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// State that the collectives of one communicator share.
struct ShmContext {
  std::shared_ptr<Communicator> host;  // over Gloo: notices lost ranks, and carries failures to other ranks
  std::shared_ptr<ShmBoard> board;
  std::shared_ptr<SharedHeap> heap;                  // this rank's
  std::vector<std::shared_ptr<SharedMemory>> heaps;  // of all ranks
  std::vector<int> names;                            // ranks' numbers in errors
  uint64_t next_sequence = 0;
  uint64_t finished_below = 0;
  std::set<uint64_t> finished_ahead;  // finished before others that were issued earlier

  using Clock = std::chrono::steady_clock;

  // The numbers in errors of a rank and of this rank.
  int name_of(int rank) const { return names[static_cast<size_t>(rank)]; }
  int own_name() const { return name_of(host->rank()); }
  void finish(uint64_t sequence);
  // Sleeps until `there` returns true. Calls `check` before that and from time to time; it throws if waiting is
  // hopeless.
  void await(const std::function<bool()>& there, const std::function<void()>& check) const;
};

// One collective. Posting blocks only while a rank has yet to finish the collective issued ShmBoard::kDepth earlier
// ([Note: room on the board]). Every failure is an error that names this rank, the other rank and the collective; it
// ends the group on all ranks.
class ShmExchange {
 public:
  // The data that others read from this rank: nothing (undefined); a copy of a contiguous tensor; or the tensor itself,
  // if it lies in this rank's heap and is no longer written.
  struct Payload {
    at::Tensor tensor = {};
    bool in_place = false;
  };
  // Posts the header and the payload. `flags`: identity.flag_words words, or null.
  ShmExchange(std::shared_ptr<ShmContext> context, CollectiveIdentity identity, const Payload& payload,
              std::vector<uint64_t>* flags);
  ~ShmExchange();
  ShmExchange(const ShmExchange&) = delete;
  ShmExchange& operator=(const ShmExchange&) = delete;

  int rank() const { return context_->host->rank(); }
  int size() const { return context_->host->size(); }
  uint64_t sequence() const { return sequence_; }

  // Waits for all posts and compares them. Throws if another rank has issued a different collective. ORs the flags.
  void agree();
  // The numel in each rank's header, after agree().
  const std::vector<int64_t>& numels() const { return numels_; }
  // Returns a flag word of another rank, after agree(): see Exchange.
  uint64_t flag_word_of(int peer, size_t index) const;
  // For flags that contain the counts that each rank sends to each rank, followed by the counts that it expects from
  // each: throws the same error on all ranks if they do not match.
  void check_counts() const;
  // Returns a part of a rank's payload, in place, after agree(). Valid until finish().
  at::Tensor payload_of(int peer, int64_t begin, int64_t numel, at::ScalarType dtype) const;
  // Returns memory for this rank's second payload; publish_second() must be called once it is written.
  at::Tensor second_payload(int64_t numel, at::ScalarType dtype);
  void publish_second();
  // Waits for a rank's second payload and returns it. Valid until finish().
  at::Tensor second_of(int peer, int64_t numel, at::ScalarType dtype);
  // Records that this rank has read all that it needs.
  void finish();
  bool finished() const { return finished_; }

 private:
  using Clock = ShmContext::Clock;
  const ShmBoard::Post& await_post(int peer, int step);
  void await(int peer, const std::function<bool()>& there);
  void check_health(int peer);
  bool has_posted_all(int peer) const;
  void post(const Payload& payload);
  void merge_flags(const Header& header, int peer);
  at::Tensor copied(const at::Tensor& tensor) const;
  int64_t keep(const at::Tensor& block);
  at::Tensor in_heap(int peer, int64_t place, int64_t begin, int64_t numel, at::ScalarType dtype) const;
  CollectiveErrors errors() const { return {identity_, sequence_, rank(), context_->names}; }
  [[noreturn]] void fail(const Failure& failure) const;

  std::shared_ptr<ShmContext> context_;
  CollectiveIdentity identity_;
  uint64_t sequence_;
  std::vector<uint64_t>* flags_;
  std::vector<int64_t> numels_;
  std::vector<at::Tensor> blocks_;
  Clock::time_point started_{};
  bool finished_ = false;
  StoppedRankWarning stopped_;
};

}  // namespace fsdp::comm
