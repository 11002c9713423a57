// How a reduction with a scale is said in the terms of NCCL.
#pragma once

#include <c10/core/ScalarType.h>
#include <nccl.h>

#include "comm/nccl_group.h"

namespace fsdp {

// NCCL's name of a dtype that it can add; throws, naming the collective, for others.
ncclDataType_t nccl_dtype(at::ScalarType dtype, const NcclSubject& subject);

// scale = before * after: what contributions are multiplied by before they are added, and the sum afterwards.
struct SplitScale {
  double before = 1.0;
  double after = 1.0;
};

// As communicator.h says: for bf16 and fp16, `before` is a power of two, which they hold exactly, at most 1. Throws for
// integers with a scale other than 1.
SplitScale split_scale(double scale, at::ScalarType dtype, const NcclSubject& subject);

// The reduction "times `factor`, then summed" of one group, as long as this lives.
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

}  // namespace fsdp
