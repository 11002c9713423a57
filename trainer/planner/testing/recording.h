// For tests: a tape of what runs on the planned device.
#pragma once

#include "planner/device/planned_device.h"
#include "planner/device/planned_memory.h"
#include "planner/tape/tape.h"

namespace fsdp::planner {

// Records on a tape while it lives.
class Recording {
 public:
  Recording() {
    begin_planning();
    PlannedMemory::get().set_log(&tape_);
  }
  ~Recording() { PlannedMemory::get().set_log(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  Tape& tape() { return tape_; }

 private:
  Tape tape_;
};

}  // namespace fsdp::planner
