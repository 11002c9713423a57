// Groups that can be told to fail from outside, and asked whether they did.
#pragma once

#include <string>

#include "fsdp/communicator.h"

namespace fsdp {

class Failable {
 public:
  virtual ~Failable() = default;
  // Marks this group, and all groups made from it or from which it was made, as failed on all ranks: their calls throw
  // `reason` from now on. The first reason stays.
  virtual void fail(const std::string& reason) = 0;
  // Throws the reason if this rank has marked the group as failed.
  virtual void check_not_failed() const = 0;
  // Throws if another rank has failed or left, and why, so that nothing new can succeed.
  virtual void check_complete() const = 0;
};

// The same for a communicator; nothing for one that is not Failable (a group of one rank).
inline void fail_group(Communicator& group, const std::string& reason) {
  if (auto* failable = dynamic_cast<Failable*>(&group)) failable->fail(reason);
}
inline void check_group_not_failed(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_not_failed();
}
inline void check_group_complete(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_complete();
}

}  // namespace fsdp
