// One collective in memory that the ranks of a host share: posts of all ranks, and payloads that others read where they
// lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/collective_errors.h"
#include "comm/collective_header.h"
#include "comm/shared_heap.h"
#include "comm/shm_board.h"
#include "comm/stopped_rank.h"
#include "fsdp/communicator.h"

namespace fsdp {

// What the collectives of one communicator share.
struct ShmContext {
  std::shared_ptr<Communicator> host;  // over Gloo: notices ranks that are lost, and tells them of failures
  std::shared_ptr<ShmBoard> board;
  std::shared_ptr<SharedHeap> heap;                  // this rank's
  std::vector<std::shared_ptr<SharedMemory>> heaps;  // of all ranks
  std::vector<int> names;                            // for errors
  uint64_t next_sequence = 0;
  uint64_t finished_below = 0;
  std::set<uint64_t> finished_ahead;  // that were finished before others that were issued before them

  using Clock = std::chrono::steady_clock;

  void finish(uint64_t sequence);
  // Sleeps until `there`; calls `check` before that, and from time to time, to throw where there is no hope.
  void await(const std::function<bool()>& there, const std::function<void()>& check) const;
};

// Posting blocks only while a rank has yet to finish the collective ShmBoard::kDepth before ([Note: room on the
// board]). Every failure is an error that names this rank, the other rank and the collective; it ends the group on all
// ranks.
class ShmExchange {
 public:
  // What others read of this rank: nothing (undefined); a copy of a contiguous tensor; or, if it lies in this rank's
  // heap and nobody writes to it any more, the tensor itself.
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

  // Waits for all posts and compares them: throws when another rank issues another collective. ORs the flags.
  void agree();
  // numel of the header of each rank, after agree().
  const std::vector<int64_t>& numels() const { return numels_; }
  // Behind agree(): see Exchange.
  uint64_t flag_word_of(int peer, size_t index) const;
  // Flags are what each rank sends to each, and behind it what it expects from each: on all ranks the same error.
  void check_counts() const;
  // A part of a rank's payload, where it lies, after agree(). Valid until finish().
  at::Tensor payload_of(int peer, int64_t begin, int64_t numel, at::ScalarType dtype) const;
  // Memory for this rank's second payload, and what is done once it is written.
  at::Tensor second_payload(int64_t numel, at::ScalarType dtype);
  void publish_second();
  // Waits for a rank's second payload. Valid until finish().
  at::Tensor second_of(int peer, int64_t numel, at::ScalarType dtype);
  // This rank has read what it needs.
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
  [[noreturn]] void fail(const std::string& reason) const;

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

}  // namespace fsdp
