// The arithmetic of reductions: sums over ranks in rank order, in one pass over memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::comm {

// Computes output[i] = scale * (parts[0][i] + parts[1][i] + …), summed from left to right: in double for double parts,
// otherwise in fp32, and rounded once to the dtype of `output`. All parts have one dtype; parts and output are 1-D,
// contiguous, of one length and on one device. `output` may be one of the parts. Float, double, bfloat16 and half CPU
// tensors take one vectorised pass; others go through ATen (integers need scale 1 and an output of their dtype).
// `summary`, if not null, is filled in by the pass that writes.
void sum_in_order(at::Tensor output, const std::vector<at::Tensor>& parts, double scale,
                  ReductionSummary* summary = nullptr);

// Returns the summary of an existing tensor: 1-D, contiguous. It is unknown if the tensor is not on the CPU or has no
// floating dtype.
ReductionSummary summary_of(const at::Tensor& tensor);
// Returns the same summary, computed in `parts` parts (part_of()), one after the other: bitwise equal to the summary of
// an all-reduce that sums in these parts.
ReductionSummary summary_in_parts(const at::Tensor& tensor, int parts);
// Returns the summary of a tensor from the summaries of its parts, added in this order.
ReductionSummary merged(const std::vector<ReductionSummary>& parts);

}  // namespace fsdp::comm
