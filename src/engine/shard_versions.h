// Which writes to a unit's shards its gathered parameters, and the values that forward has saved of them, contain (rule
// R4).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "engine/unit_parameters.h"

namespace fsdp::engine {

// Whether gathers of a unit come after all writes to its shards in the order of streams. Threads: safe.
class GatherOrder {
 public:
  explicit GatherOrder(const UnitParameters& parameters) : parameters_(parameters) {}

  bool holds() const { return version_ == parameters_.version_of_shards(); }
  void note() { version_ = parameters_.version_of_shards(); }

 private:
  const UnitParameters& parameters_;
  std::atomic<uint64_t> version_{~uint64_t{0}};  // of the shards when it was noted last
};

// Threads: guarded by the unit's mutex.
class ShardVersions {
 public:
  explicit ShardVersions(const UnitParameters& parameters) : parameters_(parameters) {}

  // Whether the shards were written since the unit was last gathered or used in forward.
  bool written() const { return seen_ && *seen_ != current(); }
  // Whether the unit was ever gathered.
  bool seen() const { return seen_.has_value(); }
  // Whether nothing was written since the last call of note_seen() or note_first_seen().
  bool up_to_date() const { return seen_ && *seen_ == current(); }
  void note_seen() { seen_ = current(); }
  void note_first_seen() {
    if (!seen_) note_seen();
  }
  // Whether the unit is being gathered anew because its shards were written while gathered or parked parameters were
  // kept. Until the next gather has ended.
  bool replaces_kept() const { return replaces_kept_; }
  void note_kept_replaced(bool on) { replaces_kept_ = on; }
  // Makes autograd refuse values of the parameters that were saved before.
  void invalidate_saved_values() const;

  // Whether it was ever used outside of backward passes, so that backward may find values saved then.
  bool used_outside_backward() const { return used_outside_backward_; }
  void note_use(bool in_backward) { used_outside_backward_ |= !in_backward; }
  // Takes over the history of a unit whose parameters have moved here.
  void take_over(const ShardVersions& before);

 private:
  uint64_t current() const { return parameters_.version_of_shards(); }

  const UnitParameters& parameters_;
  std::optional<uint64_t> seen_;
  bool used_outside_backward_ = false;
  bool replaces_kept_ = false;
};

}  // namespace fsdp::engine
