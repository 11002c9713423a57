// Puts instances of virtual functions into a precompiled header. Clang ends each file with one of every virtual
// function of a class template that a class with a constructor in a header inherits. It makes none that the precompiled
// header has, but does not put them there by itself: a file that is nearly empty took two seconds.
#pragma once

#ifdef __clang__
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/ir/attributes.h>

namespace fsdp::precompiled {

// A destructor needs the table of virtual functions, and so every function in it, also an inherited and a private one.
template <class Base>
struct Derived : Base {};

template <class... Bases>
void use_virtual_functions(Derived<Bases>*... objects) {
  (delete objects, ...);
}

inline void use_types_and_attributes() {
  (void)&use_virtual_functions<c10::AwaitType, c10::FutureType, c10::LayoutType, c10::ListType, c10::MemoryFormatType,
                               c10::RRefType, c10::ScalarTypeType, torch::jit::ComplexAttr, torch::jit::ComplexValsAttr,
                               torch::jit::FloatAttr, torch::jit::FloatsAttr, torch::jit::IntAttr, torch::jit::IntsAttr,
                               torch::jit::StringAttr, torch::jit::StringsAttr, torch::jit::TensorsAttr,
                               torch::jit::TypesAttr>;
}

}  // namespace fsdp::precompiled
#endif
