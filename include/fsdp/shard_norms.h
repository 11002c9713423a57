// Norms of whole parameters, computed from shards: what trust ratios (LARS, LAMB) and clipping by parameter need.
//
//   std::vector<double> weights = fsdp::parameter_norms(*sharded, fsdp::NormOf::kParameter);
//   std::vector<double> gradients = fsdp::parameter_norms(*sharded, fsdp::NormOf::kGradient);
//
// Each result has one number for each original parameter, in the order of ShardedModule::shard_slices() (with
// use_orig_params also that of parameters()), whatever use_orig_params and the sharding strategy. All ranks get the
// same bits: each rank's part is added in rank order. Parts are formed in fp64 for fp64 and integers, in fp32 for other
// dtypes, and added up in fp64.
//
// Collective: all ranks call with the same norm type, in the same order; one exchange of 8 bytes a parameter, none when
// every rank holds everything. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

enum class NormOf : uint8_t { kParameter, kGradient };

// The p-norms of the parameters, or of their gradients: 0 for one that has none. norm_type: positive, may be infinity;
// anything else is an error.
std::vector<double> parameter_norms(ShardedModule& sharded, NormOf what, double norm_type = 2.0);

// The same of values of the caller's, such as an optimizer's updates: values[i] has the size of parameters()[i], or is
// undefined (counts as zeros). Another number of tensors or another size is an error that names the parameter.
std::vector<double> parameter_norms(ShardedModule& sharded, const std::vector<at::Tensor>& values,
                                    double norm_type = 2.0);

}  // namespace fsdp
