// Groups that can be asked whether they have failed.
#pragma once

#include <string>

#include "fsdp/communicator.h"

namespace fsdp {

class Failable {
 public:
  virtual ~Failable() = default;
  // Throws the reason if this rank has marked the group as failed (Communicator::abort).
  virtual void check_not_failed() const = 0;
  // Throws if another rank has failed or left, and why, so that nothing new can succeed.
  virtual void check_complete() const = 0;
};

// The same for a communicator; nothing for one that is not Failable (a group of one rank).
inline void check_group_not_failed(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_not_failed();
}
inline void check_group_complete(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_complete();
}

}  // namespace fsdp
