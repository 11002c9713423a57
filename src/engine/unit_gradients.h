// The gradients of a unit.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/buffer_pool.h"
#include "engine/flat_gradient.h"
#include "flat/flat_parameter.h"

namespace fsdp::engine {

class Unit;

// One FlatGradient for each of the unit's FlatParameters that ever got gradients, in their order.
class UnitGradients {
 public:
  explicit UnitGradients(Unit& unit) : unit_(unit) {}

  // Follows the unit's FlatParameters: add() for each new one, clear() when they have moved to other units.
  void add(flat::FlatParameter& flat);
  void clear() { gradients_.clear(); }
  // Makes those of a FlatParameter that was frozen until now, if it has none yet.
  void make_missing(size_t flat);

  // Returns those of the FlatParameter with this index, or null if it is frozen as a whole.
  FlatGradient* of(size_t flat);
  // Does the same, but not null if it was frozen after it had gradients, which may still be there.
  FlatGradient* kept(size_t flat) { return gradients_.at(flat).get(); }

  // Whether this backward has captured gradients that are not being reduced yet.
  bool capturing() const;
  // Whether this backward has captured the gradients of all parameters that get any.
  bool complete() const;
  // Clears gradients that user code has cleared on the module. Throws if a leaf was replaced.
  void notice_cleared();

 private:
  std::unique_ptr<FlatGradient> make(flat::FlatParameter& flat) const;
  BufferPool::Source source_of_leaves(const flat::FlatParameter& flat) const;
  void check_leaves(const flat::FlatParameter& flat) const;

  Unit& unit_;
  std::vector<std::unique_ptr<FlatGradient>> gradients_;
};

}  // namespace fsdp::engine
