// Whole values and gradients of one unit's parameters, for scopes that work on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/unit.h"

namespace fsdp::engine {

// Returns the whole of a tensor that is divided into parts like a FlatParameter's shards, of any dtype: padded, on the
// compute device. Returns `part` itself if it is whole and on that device. Collective.
at::Tensor gather_parts(Unit& unit, const flat::FlatParameter& flat, const at::Tensor& part);

// Returns all of a FlatParameter, padded, in the dtype of its shards; the shard itself if it is whole and on the
// compute device. Collective.
at::Tensor gather_values(Unit& unit, const flat::FlatParameter& flat);

// The whole gradients of a FlatParameter.
struct WholeGradient {
  at::Tensor flat;        // padded; undefined if no parameter has one
  ParameterMask defined;  // over all ranks
};
// Gathers the gradients of one FlatParameter. Collective.
WholeGradient gather_gradient(Unit& unit, size_t flat);

// While it lives, grad() of the unit's parameters is their whole gradient. The constructor is collective.
class SummonedGradients {
 public:
  explicit SummonedGradients(Unit& unit);
  ~SummonedGradients();
  SummonedGradients(const SummonedGradients&) = delete;
  SummonedGradients& operator=(const SummonedGradients&) = delete;

  // Takes the current grad() of the parameters as the gradients of the shards. Throws if a gradient has another shape.
  void write_back();

 private:
  void show(size_t flat);
  void write_back(size_t flat);

  Unit& unit_;
  std::vector<WholeGradient> gradients_;  // by FlatParameter
};

}  // namespace fsdp::engine
