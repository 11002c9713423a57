// What ranks tell each other through their hosts about collectives that a device carries out: which ones they issue,
// and flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_header.h"
#include "fsdp/communicator.h"

namespace fsdp {

// [Note: identities beside a device] A collective on a device must not wait for the hosts, so the comparison of
// identities comes beside it, not before it. Each rank keeps a hash of all it has issued; it is part of the identity of
// each exchange of flags, which the host communicator compares. So a difference between ranks is found at the next
// exchange, which says what this rank issued of late.
class HostAgreement {
 public:
  // `host` serves this group alone. `compare_all`: exchange something for each collective.
  HostAgreement(std::shared_ptr<Communicator> host, bool compare_all);

  // One collective's exchange.
  class Exchange;

  // Notes that a collective is issued, and begins its exchange if it has one; null if not. Does not block. `flags`:
  // identity.flag_words words, or null.
  std::shared_ptr<Exchange> begin(const CollectiveIdentity& identity, const std::vector<uint64_t>* flags);

  // `id` with the hash of what was issued so far, for a collective that goes through the host communicator as it is.
  CollectiveId with_history(const CollectiveId& id) const;

  // Puts the OR over the ranks into `flags`. Blocks until all ranks have begun the exchange, or throws what went wrong.
  // Where the result is known before, it may leave the exchange for later: then a later call throws.
  void finish(const std::shared_ptr<Exchange>& exchange, std::vector<uint64_t>* flags);

 private:
  std::unique_ptr<Work> issue(const CollectiveIdentity& identity, std::vector<uint64_t>* flags);
  void note(const CollectiveIdentity& identity);
  void finish_oldest();
  std::string latest() const;

  std::shared_ptr<Communicator> host_;
  bool compare_all_;
  uint64_t history_ = 0;  // a hash of all that was issued
  uint64_t count_ = 0;
  std::deque<CollectiveIdentity> latest_;
  std::deque<std::shared_ptr<Exchange>> unfinished_;  // in order of issue
};

}  // namespace fsdp
