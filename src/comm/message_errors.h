// The failures of a message between two ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/collective_header.h"
#include "comm/failure.h"

namespace fsdp::comm {

// The failures of one message on one of its two ranks.
class MessageErrors {
 public:
  // `number`: counts the messages from the sender to the receiver, from 0. `sends`: whether this rank is the sender.
  MessageErrors(const CollectiveIdentity& identity, uint64_t number, bool sends)
      : identity_(identity), number_(number), sends_(sends) {}

  // On the receiver: the sender sends another message in its place.
  Failure differs(const Header& sent) const;
  Failure lost(const std::string& why) const;
  Failure late(std::chrono::steady_clock::duration waited, std::chrono::milliseconds timeout) const;
  // By fsdp::interrupt_waits().
  Failure interrupted() const;
  // "rank 1 waits for its message of 'x' (forward, generation 7), Float of sizes [4], from rank 0 to rank 1"
  std::string waits() const;

 private:
  int rank() const { return sends_ ? identity_.root : identity_.receiver; }
  int peer() const { return sends_ ? identity_.receiver : identity_.root; }

  const CollectiveIdentity& identity_;
  const uint64_t number_;
  const bool sends_;
};

}  // namespace fsdp::comm
