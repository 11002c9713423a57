// The learning rate over the steps of a run, by the formulas of transformers' get_scheduler.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace fsdp::trainer {

class LrSchedule {
 public:
  LrSchedule(LrSchedulerType type, double base, int64_t warmup_steps, int64_t max_steps);

  // Returns the learning rate of optimizer step `step`, counted from 0. During warm-up it is base * step /
  // warmup_steps, so 0 at first.
  double at(int64_t step) const;

 private:
  double factor_after_warmup(int64_t step) const;

  LrSchedulerType type_;
  double base_;
  int64_t warmup_steps_;
  int64_t max_steps_;
};

}  // namespace fsdp::trainer
