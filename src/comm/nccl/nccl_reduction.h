// Expresses a reduction with a scale in terms of NCCL.
#pragma once

#include <c10/core/ScalarType.h>
#include <nccl.h>

#include "comm/nccl/nccl_group.h"

namespace fsdp::comm {

// Returns NCCL's name for a dtype that it can add. Throws for other dtypes, naming the collective.
ncclDataType_t nccl_dtype(at::ScalarType dtype, const NcclSubject& subject);

// A scale split into scale = before * after: contributions are multiplied by `before` before they are added, and the
// sum by `after` afterwards.
struct SplitScale {
  double before = 1.0;
  double after = 1.0;
};

// Splits a scale as communicator.h says: for bf16 and fp16, `before` is a power of two, at most 1, which these dtypes
// represent exactly. Throws for integers with a scale other than 1.
SplitScale split_scale(double scale, at::ScalarType dtype, const NcclSubject& subject);

// The NCCL operator "multiply by `factor`, then sum" of one group; it exists as long as this object.
class ScaledSum {
 public:
  ScaledSum(NcclGroup& group, const NcclSubject& subject, at::ScalarType dtype, double factor);
  ~ScaledSum();
  ScaledSum(const ScaledSum&) = delete;
  ScaledSum& operator=(const ScaledSum&) = delete;

  ncclRedOp_t op() const { return op_; }

 private:
  NcclGroup& group_;
  ncclRedOp_t op_ = ncclSum;
};

}  // namespace fsdp::comm
