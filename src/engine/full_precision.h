// Turns full precision on and off: the dtypes of gathered parameters and of buffers
// (ShardedModule::set_full_precision).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/gatherer.h"
#include "engine/gradient_flow.h"
#include "engine/unit_tree.h"

namespace fsdp::engine {

// Threads: changes only between passes.
class FullPrecision {
 public:
  FullPrecision(UnitContext& context, UnitTree& tree, Gatherer& gatherer, GradientFlow& gradients);

  // A buffer that was cast from its own dtype to `low` (Options::buffer_dtype).
  struct CastBuffer {
    at::Tensor buffer;
    at::ScalarType original;
    at::ScalarType low;
  };
  void add(const CastBuffer& buffer) { buffers_.push_back(buffer); }
  // Takes over the buffers of an engine whose units were absorbed. Its full precision must be off.
  void absorb(const FullPrecision& inner);

  bool on() const { return context_.full_precision; }
  // Throws during backward, while a unit is in use, and while gradients are accumulated without communication.
  void set(bool on);

 private:
  UnitContext& context_;
  UnitTree& tree_;
  Gatherer& gatherer_;
  GradientFlow& gradients_;
  std::vector<CastBuffer> buffers_;
};

}  // namespace fsdp::engine
