// Who uses a unit now, and what its user has allowed.
#pragma once

#include <cstdint>
#include <utility>

#include "fsdp/pass.h"

namespace fsdp::engine {

// A unit must stay gathered while it is pinned: by an operator that runs, or by a scope of the user.
//
// Threads: guarded by the unit's mutex.
class UnitUse {
 public:
  void pin() { ++pins_; }
  // Returns whether it was the last pin.
  bool unpin() { return --pins_ == 0; }
  bool pinned() const { return pins_ > 0; }

  // Whether it is to be released when the last pin ends, because it is not expected to be used again.
  bool to_be_released() const { return to_be_released_; }
  void release_when_unpinned() { to_be_released_ = true; }
  void note_released() { to_be_released_ = false; }

  // Scopes in which its parameters may be written.
  void open_write_scope() { ++write_scopes_; }
  void close_write_scope() { --write_scopes_; }
  bool writable() const { return write_scopes_ > 0; }

  // Inside summon_full_params(rank0_only), on all ranks but 0: a use of the unit is an error.
  void forbid(bool on) { forbidden_ = on; }
  bool forbidden() const { return forbidden_; }

 private:
  int pins_ = 0;
  int write_scopes_ = 0;
  bool to_be_released_ = false;
  bool forbidden_ = false;
};

// For the trace: when a unit's gather was issued, in which pass, and since when the limiter has held it back.
class GatherTimes {
 public:
  void note_issued(Pass pass, int64_t now) {
    pass_ = pass;
    issued_ = now;
  }
  Pass pass() const { return pass_; }
  int64_t issued() const { return issued_; }
  // Keeps the first time since take_held_back().
  void note_held_back(int64_t now) { held_back_ = held_back_ == 0 ? now : held_back_; }
  // Returns the time and clears it; 0: it was not held back, or nothing is traced.
  int64_t take_held_back() { return std::exchange(held_back_, 0); }

 private:
  Pass pass_ = Pass::kForward;
  int64_t issued_ = 0;
  int64_t held_back_ = 0;
};

}  // namespace fsdp::engine
