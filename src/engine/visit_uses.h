// One visit of a unit, use by use.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/visit_history.h"

namespace fsdp {

// The uses of a unit's parameters in one visit, and whether the last one was seen that is expected.
class VisitUses {
 public:
  // `expected`: the use after which the unit is to be released; none: it is not.
  void begin(std::optional<VisitHistory::LastUse> expected);
  void note(int64_t parameter);
  const VisitHistory::LastUse& last() const { return last_; }
  bool over() const { return over_; }
  // Whether the last use is expected and has not come.
  bool goes_on() const { return expected_ && !over_; }

 private:
  std::vector<int64_t> counts_;  // by parameter
  VisitHistory::LastUse last_;
  std::optional<VisitHistory::LastUse> expected_;
  bool over_ = false;
};

}  // namespace fsdp
