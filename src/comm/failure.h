// How a group of ranks failed. All errors of type CommunicationError are made here.
#pragma once

#include <exception>
#include <string>

#include "fsdp/errors.h"

namespace fsdp::comm {

struct Failure {
  enum class Kind { kOther, kRankLost, kRankLate, kRanksDiffer, kInterrupted };

  Kind kind = Kind::kOther;
  std::string reason;

  // Returns the failure that an error describes: its kind by the error's type, its reason the first line of the
  // message.
  static Failure of(const std::exception& error);
  // Throws the error of this kind, whose message is the reason.
  [[noreturn]] void raise() const;
};

}  // namespace fsdp::comm
