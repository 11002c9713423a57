// Operators that write to whole parameters of a unit outside of ShardedModule::with_full_params.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/parameter_mask.h"
#include "engine/unit.h"

namespace fsdp::engine {

// [Note: writes to whole parameters]
// An operator that writes to a parameter runs on *stand-ins* for this unit's parameters: tensors of the same geometry
// in a whole copy of the FlatParameter, in the dtype of the shards and in memory of this rank alone. If it succeeds,
// each rank copies its own part to its shard. Therefore
//  - the operator sees and writes values in full precision, and elements that it does not write keep their bits;
//  - nothing is written if it throws, or if it has changed the geometry of an argument;
//  - no rank writes to memory that another one reads, wherever gathered parameters lie;
//  - the order of uses, from which gathers are predicted and automatic units are cut, knows nothing of it.
// Each rank keeps only its own part, so ranks that write different values (generators with different seeds, values that
// depend on a rank's own data) would end up with a mixture, and replicas would diverge. All ranks compare a digest of
// the parameters that were written before they keep anything. The exchange is also the point after which no rank reads
// another one's shard for the copy.
//
// One operator on one unit; used by one thread.
class WriteThrough {
 public:
  // `op`: the name of the operator, for errors. Throws if the unit's parameters may not be written now.
  WriteThrough(Unit& unit, std::string op);

  Unit& unit() const { return unit_; }
  // Returns the stand-in for a parameter, or for a view of it. `index`: of the parameter in the unit. The first call
  // for a FlatParameter is collective.
  at::Tensor stand_in(const at::Tensor& view, int64_t index, bool written);
  // Throws on all ranks if they have written different values. Collective.
  void check_alike();
  // Copies what was written to this rank's shards. Gathered copies are released or, if the unit is pinned, updated.
  void keep();

 private:
  struct Copy {
    at::Tensor whole;       // of a FlatParameter; undefined if no argument belongs to it
    ParameterMask written;  // its parameters that the operator writes
  };
  void check_writable() const;
  Copy& copy_of(const flat::FlatParameter& flat);
  std::string digests() const;
  std::vector<std::string> written_fqns() const;

  Unit& unit_;
  const std::string op_;
  std::vector<Copy> copies_;  // by FlatParameter
};

}  // namespace fsdp::engine
