#include "engine/visit_uses.h"

#include <algorithm>

namespace fsdp {

void VisitUses::begin(std::optional<VisitHistory::LastUse> expected) {
  std::fill(counts_.begin(), counts_.end(), 0);
  last_ = {};
  expected_ = expected;
  over_ = false;
}

void VisitUses::note(int64_t parameter) {
  if (static_cast<size_t>(parameter) >= counts_.size()) {
    counts_.resize(parameter + 1);
  }
  last_ = {parameter, ++counts_[parameter]};
  over_ |= last_ == expected_;
}

}  // namespace fsdp
