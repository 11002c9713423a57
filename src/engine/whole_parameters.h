// Whole values and gradients of one unit's parameters, for scopes that work on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/unit.h"

namespace fsdp {

// All of what lies in parts like a FlatParameter's shards, of any dtype: padded, on the compute device; `part` itself
// where that is whole and there. Collective.
at::Tensor gather_parts(Unit& unit, const FlatParameter& flat, const at::Tensor& part);

// All of a FlatParameter, padded, in the dtype of its shards; the shard itself where that is whole. Collective.
at::Tensor gather_values(Unit& unit, const FlatParameter& flat);

// A FlatParameter's gradients, whole.
struct WholeGradient {
  at::Tensor flat;        // padded; undefined when no parameter has one
  ParameterMask defined;  // over all ranks
};
// Collective.
WholeGradient gather_gradient(Unit& unit, size_t flat);

// While it lives, grad() of the unit's parameters is their whole gradient. Making one is collective.
class SummonedGradients {
 public:
  explicit SummonedGradients(Unit& unit);
  ~SummonedGradients();
  SummonedGradients(const SummonedGradients&) = delete;
  SummonedGradients& operator=(const SummonedGradients&) = delete;

  // Takes what grad() shows now as the shards' gradients. Throws for a gradient of another shape.
  void write_back();

 private:
  void show(size_t flat);
  void write_back(size_t flat);

  Unit& unit_;
  std::vector<WholeGradient> gradients_;  // by FlatParameter
};

}  // namespace fsdp
