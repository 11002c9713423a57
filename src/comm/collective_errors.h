// The error messages of a rank whose collective fails.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/collective_header.h"

namespace fsdp::comm {

// The error messages of one collective on one rank. Peers are ranks of the group; messages name them by `names`.
class CollectiveErrors {
 public:
  CollectiveErrors(const CollectiveIdentity& identity, uint64_t sequence, int rank, const std::vector<int>& names)
      : identity_(identity), sequence_(sequence), rank_(rank), names_(names) {}

  std::string differs(const Header& other, int peer) const;
  std::string lost(int peer, const std::string& why) const;
  std::string late(int peer, std::chrono::steady_clock::duration waited, std::chrono::milliseconds timeout) const;
  // For an all-to-all.
  std::string count_differs(int sender, int64_t sent, int receiver, int64_t expected) const;

 private:
  int name_of(int rank) const { return names_[static_cast<size_t>(rank)]; }
  std::string subject() const;

  const CollectiveIdentity& identity_;
  uint64_t sequence_;
  int rank_;
  const std::vector<int>& names_;
};

}  // namespace fsdp::comm
