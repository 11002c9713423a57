// Norms of whole parameters, computed from shards: for trust ratios (LARS, LAMB) and for clipping by parameter.
//
//   std::vector<double> weights = fsdp::parameter_norms(*sharded, fsdp::NormOf::kParameter);
//   std::vector<double> gradients = fsdp::parameter_norms(*sharded, fsdp::NormOf::kGradient);
//
// Each result has one number for each original parameter, in the order of ShardedModule::shard_slices() (with
// use_orig_params, also the order of parameters()), for either value of use_orig_params and for any sharding strategy.
// All ranks get the same bits: the ranks' parts are added in rank order. Parts are computed in fp64 for fp64 and
// integers, in fp32 for other dtypes, and added in fp64.
//
// Collective: all ranks call with the same norm type, in the same order. One exchange of 8 bytes for each parameter, or
// none if every rank holds everything. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp {

enum class NormOf : uint8_t { kParameter, kGradient };

// The p-norms of the parameters or of their gradients; 0 for a parameter without a gradient. norm_type: positive, may
// be infinity; other values are an error.
std::vector<double> parameter_norms(ShardedModule& sharded, NormOf what, double norm_type = 2.0);

// The p-norms of the caller's own values, such as an optimizer's updates: values[i] has the size of parameters()[i], or
// is undefined (counts as zeros). A different number of tensors or a different size is an error that names the
// parameter.
std::vector<double> parameter_norms(ShardedModule& sharded, const std::vector<at::Tensor>& values,
                                    double norm_type = 2.0);

}  // namespace fsdp
