// Cuts a sequence of parameters into units. Arithmetic only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::schedule {

// Parameters that one operator uses together, or one parameter, in the order of first use.
struct CutItem {
  int64_t nbytes = 0;           // when gathered
  int64_t gathered_nbytes = 0;  // nbytes, or 0 if its shard serves as the unsharded buffer
  int64_t gradient_nbytes = 0;  // of the buffer for its gradient
  bool adopts = false;          // if it is alone in a unit, its gradient becomes the buffer
  bool returns = false;         // forward uses it again after others
  bool joins = true;            // no parameter of another cut was used between the item before and this one
};

struct CutRules {
  std::optional<int64_t> target_nbytes{};  // of a unit
  int64_t max_target_nbytes = 0;           // the largest default target, if target_nbytes is unset
  std::optional<int64_t> bound_nbytes{};
  size_t gathered_at_a_time = 2;   // units, in addition to the root
  size_t gradients_at_a_time = 2;  // units, in addition to the root
  bool reshards = true;            // false: all parameters are gathered at the same time
};

struct UnitCut {
  std::vector<std::vector<size_t>> units;  // indices of items
  bool has_root = false;                   // the first of `units` stays gathered
  int64_t needed_nbytes = 0;               // peak bytes of gathered parameters and gradient buffers
  bool fits = true;                        // whether the bound is kept; if not, `units` are the smallest possible
};

// Cuts items into units: see AutoUnits. Of the cuts into the same number of units, takes the one with the smallest
// largest unit.
UnitCut cut_into_units(const std::vector<CutItem>& items, const CutRules& rules);

}  // namespace fsdp::schedule
