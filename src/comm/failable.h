// Groups that can be asked whether they have failed.
#pragma once

#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::comm {

class GroupFamily;

// A rank that has failed or left, and why.
struct Loss {
  int rank = 0;
  std::string why;
};

class Failable {
 public:
  virtual ~Failable() = default;
  // Throws the reason if this rank has marked the group as failed (Communicator::abort).
  virtual void check_not_failed() const = 0;
  // Throws the reason if another rank has failed or left, because no new collective can succeed then.
  virtual void check_complete() const = 0;
  // The ranks that have failed or left so far, as far as the group notices by itself.
  virtual std::vector<Loss> losses() const { return {}; }
  // The groups that were made from one another, which fail together.
  virtual GroupFamily* family() const = 0;
};

// The same checks for any communicator. They do nothing if it is not Failable (a group of one rank).
inline void check_group_not_failed(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_not_failed();
}
inline void check_group_complete(const Communicator& group) {
  if (const auto* failable = dynamic_cast<const Failable*>(&group)) failable->check_complete();
}

// Throws if this rank of the group has failed or left. Messages between other ranks can still succeed.
void check_present(const Communicator& group, int rank);

// Returns the family of a group, or null (a group of one rank, or one that is wrapped).
inline GroupFamily* family_of(const Communicator& group) {
  const auto* failable = dynamic_cast<const Failable*>(&group);
  return failable ? failable->family() : nullptr;
}

inline std::vector<Loss> losses_of(const Communicator& group) {
  const auto* failable = dynamic_cast<const Failable*>(&group);
  return failable ? failable->losses() : std::vector<Loss>();
}

}  // namespace fsdp::comm
