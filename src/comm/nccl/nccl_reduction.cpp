#include "comm/nccl/nccl_reduction.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

namespace fsdp::comm {
namespace {

constexpr double kSmallestNormalHalf = 0x1p-14;
constexpr double kSmallestNormalFloat = 0x1p-126;

bool is_narrow(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// The memory of `factor`, in the dtype of the contributions.
union Scalar {
  float as_float;
  double as_double;
  uint16_t as_bits;
};

Scalar scalar_of(at::ScalarType dtype, double factor) {
  Scalar scalar{};
  switch (dtype) {
    case at::kDouble:
      scalar.as_double = factor;
      break;
    case at::kHalf:
      scalar.as_bits = c10::Half(static_cast<float>(factor)).x;
      break;
    case at::kBFloat16:
      scalar.as_bits = c10::BFloat16(static_cast<float>(factor)).x;
      break;
    default:
      scalar.as_float = static_cast<float>(factor);
  }
  return scalar;
}

}  // namespace

ncclDataType_t nccl_dtype(at::ScalarType dtype, const NcclSubject& subject) {
  switch (dtype) {
    case at::kFloat:
      return ncclFloat32;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kDouble:
      return ncclFloat64;
    case at::kByte:
      return ncclUint8;
    case at::kChar:
      return ncclInt8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    default:
      TORCH_CHECK(false, describe(subject.kind, subject.id), ": NCCL cannot add tensors of ", dtype,
                  "; convert them, for example to Float");
  }
}

SplitScale split_scale(double scale, at::ScalarType dtype, const NcclSubject& subject) {
  if (scale == 1.0) return {};
  TORCH_CHECK(at::isFloatingType(dtype), describe(subject.kind, subject.id), ": integers (here ", dtype,
              ") can be added only with scale 1, not ", scale);
  if (!is_narrow(dtype)) return {scale, 1.0};
  if (!(scale > 0.0) || !std::isfinite(scale)) return {1.0, scale};
  const double smallest = dtype == at::kHalf ? kSmallestNormalHalf : kSmallestNormalFloat;
  const double before = std::clamp(std::exp2(std::floor(std::log2(scale))), smallest, 1.0);
  return {before, scale / before};
}

ScaledSum::ScaledSum(NcclGroup& group, const NcclSubject& subject, at::ScalarType dtype, double factor)
    : group_(group) {
  if (factor == 1.0) return;
  Scalar scalar = scalar_of(dtype, factor);
  group_.call(subject, [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.red_op_create_pre_mul_sum(&op_, &scalar, nccl_dtype(dtype, subject), ncclScalarHostImmediate, comm);
  });
}

// NCCL needs the operator only during the calls that use it.
ScaledSum::~ScaledSum() {
  if (op_ != ncclSum) group_.release(op_);
}

}  // namespace fsdp::comm
