// Properties of an operator that the first-use fallback needs, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace fsdp::dispatch {

enum class OperatorKind : uint8_t {
  // Reads or writes elements: its units are gathered and pinned, and nested operators are not looked at.
  kCompute,
  // An operator that is not ATen's: its units are gathered and pinned as well, but nested operators are looked at too,
  // since the operator may use parameters that are not among its arguments, or run a backward (rule R2).
  kCustom,
  // Only makes a view, or only changes or reads metadata: accesses no elements.
  kView,
  // May make a view or a copy, or runs other operators that must be seen one by one (contiguous, reshape, backward).
  kTransparent,
  // resolve_conj and resolve_neg: callers go on to read the raw memory of the result (tolist, printing), so the result
  // is a copy unless the parameter is pinned.
  kCopy,
  // _has_compatible_shallow_copy_type(tensor, data): the only part of tensor.set_data(data) that the dispatcher sees.
  // The data is set afterwards if the answer is yes.
  kSetData,
  // zero_ and _foreach_zero_: on a gradient sentinel they clear the shards' gradient.
  kZero,
};

// The treatment of floating-point arguments whose dtype differs from that of the sharded parameter
// (Options::cast_forward_inputs).
enum class CastRule : uint8_t {
  kNone,           // the operator promotes dtypes itself, or accepts any
  kToParameter,    // the operator cannot mix dtypes: arguments are cast to the parameter's dtype
  kNormalisation,  // as kToParameter, but if the parameter is wider, results are cast back to the input's dtype
};

// The tensor that an operator makes like its first argument (dispatch/leaf_likeness.h).
enum class MadeLike : uint8_t { kNothing, kEmpty, kZeros, kOnes, kFull, kNewFull, kCopy };

struct OperatorInfo {
  CastRule cast = CastRule::kNone;
  OperatorKind kind = OperatorKind::kCompute;
  MadeLike made_like = MadeLike::kNothing;
  struct Argument {
    int32_t position;  // from the left
    bool written;
    bool out = false;         // an `out=` argument
    bool statistics = false;  // running statistics: may be written, though the schema does not say so
  };
  c10::SmallVector<Argument, 8> tensors;  // arguments that are, or may hold, tensors
  int32_t num_arguments = 0;
  bool writes = false;  // whether it writes to any of them
  // Identifies the described operator: its name, and the address of its schema's arguments.
  c10::OperatorName name{"", ""};
  const c10::Argument* schema_arguments = nullptr;
};

// Returns the properties of an operator, cached for each thread. The reference stays valid until the same thread asks
// for another operator that has taken the address of this one.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace fsdp::dispatch
