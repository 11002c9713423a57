// Replaces tensors in an operator's arguments.
#pragma once

#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace fsdp::base {

// Returns `value` with each defined tensor replaced by `map(tensor)`, both a tensor itself and tensors inside lists and
// tuples. The original containers are not changed.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, const Map& map) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  if (value.isList()) {
    auto list = value.toList().copy();
    for (size_t i = 0; i < list.size(); ++i) list.set(i, map_tensors(list.get(i), map));
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements()) elements.push_back(map_tensors(element, map));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  return value;
}

}  // namespace fsdp::base
