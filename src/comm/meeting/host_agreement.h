// Lets ranks compare, through their hosts, the collectives that a device carries out, and exchange flags for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_header.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// [Note: identities beside a device] A collective on a device must not wait for the hosts, so the ranks compare
// identities beside the collective, not before it. Each rank keeps a hash of everything it has issued. The hash is part
// of the identity of each exchange of flags, which the host communicator compares. So the next exchange finds a
// difference between ranks, and its error lists what this rank issued recently.
class HostAgreement {
 public:
  // `host` serves this group alone. `compare_all`: whether every collective has an exchange.
  HostAgreement(std::shared_ptr<Communicator> host, bool compare_all);

  // The exchange that belongs to one collective.
  class Exchange;

  // Records that a collective is issued. Begins and returns its exchange, or returns null if it needs none. Does not
  // block. `flags`: identity.flag_words words, or null.
  std::shared_ptr<Exchange> begin(const CollectiveIdentity& identity, const std::vector<uint64_t>* flags);

  // Returns `id` with the hash of everything issued so far, for a collective that goes directly through the host
  // communicator.
  CollectiveId with_history(const CollectiveId& id) const;

  // Stores the OR over the ranks in `flags`. Blocks until all ranks have begun the exchange; throws if it failed. If
  // the result is known in advance, it may leave the exchange for later; a later call then throws its error.
  void finish(const std::shared_ptr<Exchange>& exchange, std::vector<uint64_t>* flags);

 private:
  std::unique_ptr<Work> issue(const CollectiveIdentity& identity, std::vector<uint64_t>* flags);
  void note(const CollectiveIdentity& identity);
  void finish_oldest();
  std::string latest() const;

  std::shared_ptr<Communicator> host_;
  bool compare_all_;
  uint64_t history_ = 0;  // a hash of everything issued
  uint64_t count_ = 0;
  std::deque<CollectiveIdentity> latest_;
  std::deque<std::shared_ptr<Exchange>> unfinished_;  // in order of issue
};

}  // namespace fsdp::comm
