// Finds out how a plan cuts a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "flat/part_of_whole.h"
#include "fsdp/tensor_parallel.h"

namespace fsdp::tensor_parallel {

// Both unset: the parameter stays as it is.
struct Split {
  std::shared_ptr<const flat::PartOfWhole> part;  // of the rank
  bool shared_by_parts = false;
};

class SplitPlan {
 public:
  // Refers to `plan`. `rank` of `size` ranks. `splits_sequence`: with sequence parallelism.
  SplitPlan(const std::vector<TensorParallelRule>& plan, int rank, int size, bool splits_sequence = false);

  // `modules`: the modules that hold the parameter, more than one if it is shared; their rules must cut it alike.
  // `name`: for errors. Throws if a rule cannot cut it.
  Split of(const std::vector<std::string>& modules, const std::string& name, at::IntArrayRef sizes);

  // Throws if a rule has matched no module so far.
  void check_all_used() const;
  // The plan as text, to be compared over the ranks.
  std::string fingerprint() const;

 private:
  const TensorParallelRule* rule_for(const std::string& module);
  Split split_by(const TensorParallelRule& rule, const std::string& name, at::IntArrayRef sizes) const;

  const std::vector<TensorParallelRule>& plan_;
  int rank_, size_;
  bool splits_sequence_;
  std::vector<bool> used_;
};

}  // namespace fsdp::tensor_parallel
