// Visits the tensors in an operator's arguments or results, in any containers.
#pragma once

#include <ATen/core/ivalue.h>

namespace fsdp::base {

// Calls `visit` with each tensor in `value`: the value itself, or the tensors inside lists, tuples and the values of
// dictionaries.
template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_tensors(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) visit_tensors(element, visit);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) visit_tensors(entry.value(), visit);
  }
}

}  // namespace fsdp::base
