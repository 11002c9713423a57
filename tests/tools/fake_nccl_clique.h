// The ranks of a group over the fake NCCL: how they meet, and what they exchange.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fake_nccl {

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// One rank's contribution to a collective.
struct Part {
  const void* send;
  void* receive;
  Kind kind;
  size_t count;
  ncclDataType_t dtype;
  double factor;
  int root = 0;
};

// One collective of all ranks. The last rank to arrive carries it out for all of them.
struct Meeting {
  std::vector<std::optional<Part>> parts;
  size_t come = 0;
  size_t gone = 0;
  bool done = false;
  ncclResult_t result = ncclSuccess;
};

// A message between two ranks.
struct Parcel {
  std::string bytes;
  bool taken = false;
};

struct Clique {
  explicit Clique(int size) : size(size) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Meeting> meetings;                                        // by number of the collective
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Parcel>>> parcels;  // by sender and receiver
  std::set<int> left;  // ranks that ended or aborted their communicator
  int joined = 0;
  bool aborted = false;
};

// Returns the clique that ranks with this id have in common.
std::shared_ptr<Clique> clique_of(const ncclUniqueId& id, int size);

size_t bytes_of(ncclDataType_t dtype);

// Takes part in a collective, and waits until all ranks do. An aborted clique takes no more parts.
ncclResult_t meet(Clique& clique, uint64_t number, int rank, const Part& part);

// A send or a receive in a group.
struct Transfer {
  bool sends;
  int peer;
  void* memory;
  size_t bytes;
};

// Puts down all outgoing messages, takes all incoming ones, and waits until the receivers have taken theirs. A rank
// that has left is an error only for ranks that still wait for it.
ncclResult_t transfer(Clique& clique, int rank, const std::vector<Transfer>& transfers);

}  // namespace fake_nccl
