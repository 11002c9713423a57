// What the first-use fallback needs to know of an operator, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace fsdp {

enum class OperatorKind : uint8_t {
  // Reads or writes elements: its units are gathered and pinned, and nested operators are not looked at.
  kCompute,
  // An operator that is not ATen's: gathered and pinned as well, but nested operators are looked at too, since it may
  // hold parameters that are not among its arguments, or run a backward (rule R2).
  kCustom,
  // Only makes a view, or only changes or reads metadata: touches nothing.
  kView,
  // May make a view or a copy, or runs other operators that are to be seen one by one (contiguous, reshape, backward).
  kTransparent,
  // resolve_conj and resolve_neg: callers go on to read the raw memory of the result (tolist, printing), so a copy,
  // unless the parameter is pinned.
  kCopy,
  // _has_compatible_shallow_copy_type(tensor, data): all that the dispatcher sees of tensor.set_data(data), which
  // follows where the answer is yes.
  kSetData,
  // zero_ and _foreach_zero_: on a gradient sentinel they clear the shards' gradient.
  kZero,
};

// What is done with floating-point arguments of other dtypes than the sharded parameter's
// (Options::cast_forward_inputs).
enum class CastRule : uint8_t {
  kNone,           // the operator promotes dtypes by itself, or does not care
  kToParameter,    // it cannot mix them: arguments are cast to the parameter's dtype
  kNormalisation,  // the same; but where the parameter is wider, results are cast back to the input's dtype
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
    bool statistics = false;  // of a normalisation: its kernel may write them, though the schema does not say so
  };
  c10::SmallVector<Argument, 8> tensors;  // arguments that are, or may hold, tensors
  int32_t num_arguments = 0;
  // What was described: the operator's name, and where its schema keeps the arguments.
  c10::OperatorName name{"", ""};
  const c10::Argument* schema_arguments = nullptr;
};

// Cached for each thread. The reference stays valid until the same thread asks for an operator that has taken the place
// of this one.
const OperatorInfo& operator_info(const c10::OperatorHandle& op);

}  // namespace fsdp
