#include "loop/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace fsdp::trainer {

LrSchedule::LrSchedule(LrSchedulerType type, double base, int64_t warmup_steps, int64_t max_steps)
    : type_(type), base_(base), warmup_steps_(warmup_steps), max_steps_(max_steps) {}

double LrSchedule::at(int64_t step) const {
  if (step < warmup_steps_) return base_ * (static_cast<double>(step) / static_cast<double>(warmup_steps_));
  return base_ * factor_after_warmup(step);
}

double LrSchedule::factor_after_warmup(int64_t step) const {
  const auto length = static_cast<double>(std::max<int64_t>(1, max_steps_ - warmup_steps_));
  switch (type_) {
    case LrSchedulerType::kConstant:
      return 1.0;
    case LrSchedulerType::kLinear:
      return std::max(0.0, static_cast<double>(max_steps_ - step) / length);
    case LrSchedulerType::kCosine:
      return std::max(0.0,
                      0.5 * (1.0 + std::cos(std::numbers::pi * static_cast<double>(step - warmup_steps_) / length)));
  }
  throw std::logic_error("a learning rate schedule without a formula");
}

}  // namespace fsdp::trainer
