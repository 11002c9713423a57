// Where a sequence of parameters is cut into units: arithmetic only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::schedule {

// A parameter in the order of first use.
struct CutItem {
  int64_t nbytes = 0;           // gathered
  int64_t gathered_nbytes = 0;  // the same, or 0 where its shard serves as the unsharded buffer
  int64_t gradient_nbytes = 0;  // of the buffer for its gradient
  bool adopts = false;          // alone in a unit its gradient is the buffer
  bool returns = false;         // forward uses it again after others
  bool joins = true;            // no parameter of another cut was used between the one before and it
};

struct CutRules {
  std::optional<int64_t> target_nbytes{};  // of a unit
  int64_t max_target_nbytes = 0;           // where it is unset
  std::optional<int64_t> bound_nbytes{};
  size_t gathered_at_a_time = 2;   // units, beside the root
  size_t gradients_at_a_time = 2;  // likewise
  bool reshards = true;            // else all parameters are gathered at a time
};

struct UnitCut {
  std::vector<std::vector<size_t>> units;  // indices of items
  bool has_root = false;                   // the first of `units` stays gathered
  int64_t planned_nbytes = 0;              // gathered parameters and gradient buffers at a time, at most
  bool fits = true;                        // the bound; if not, `units` are the smallest possible
};

// See AutoUnits. Of two cuts into as many units that with the smaller largest unit.
UnitCut cut_into_units(const std::vector<CutItem>& items, const CutRules& rules);

}  // namespace fsdp::schedule
