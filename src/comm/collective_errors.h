// The failures of a rank's collective.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/collective_header.h"
#include "comm/failure.h"

namespace fsdp::comm {

// The failures of one collective on one rank. Peers are ranks of the group; reasons name them by `names`.
class CollectiveErrors {
 public:
  CollectiveErrors(const CollectiveIdentity& identity, uint64_t sequence, int rank, const std::vector<int>& names)
      : identity_(identity), sequence_(sequence), rank_(rank), names_(names) {}

  Failure differs(const Header& other, int peer) const;
  Failure lost(int peer, const std::string& why) const;
  Failure late(int peer, std::chrono::steady_clock::duration waited, std::chrono::milliseconds timeout) const;
  // By fsdp::interrupt_waits().
  Failure interrupted(int peer) const;
  // For an all-to-all.
  Failure count_differs(int sender, int64_t sent, int receiver, int64_t expected) const;

 private:
  int name_of(int rank) const { return names_[static_cast<size_t>(rank)]; }
  std::string subject() const;

  const CollectiveIdentity& identity_;
  uint64_t sequence_;
  int rank_;
  const std::vector<int>& names_;
};

}  // namespace fsdp::comm
