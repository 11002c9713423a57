// Tensors that were made like a leaf whose unit is to be cut: state that an optimizer makes when it is constructed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace fsdp {

// What the elements of a tensor made like a leaf are.
struct Likeness {
  enum class Values { kUndefined, kConstant, kCopy };
  Values values = Values::kUndefined;
  c10::Scalar constant = 0;
  std::string op = {};  // the operator that made it
};

// [Note: state made before units are cut]
// A leaf changes its size when units are cut, and what was made like it (Adagrad's sums) must have the new one. All
// elements of such a tensor are known without those of other ranks as long as nobody has written to it: they are one
// constant, or copies of the leaf's. So it is made anew, as the same object, when its leaf has moved.
class LeafCompanions {
 public:
  void note(const at::Tensor& made, Likeness likeness, uint64_t leaf_version);
  bool empty() const { return companions_.empty(); }
  // Throws if state was written to, which cannot be made anew. `where`: its rank and unit.
  void check_unwritten(const std::string& where) const;
  // `leaf` has moved; `leaf_version`: of it before.
  void follow(const at::Tensor& leaf, uint64_t leaf_version) const;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Companion {
    WeakTensor tensor;
    Likeness likeness;
    uint32_t version;
    uint64_t leaf_version;
  };
  std::vector<Companion> companions_;
};

}  // namespace fsdp
