// Tensors that were made like a leaf whose unit will be cut: state that an optimizer makes when it is constructed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace fsdp::engine {

// The elements of a tensor that was made like a leaf.
struct Likeness {
  enum class Values { kUndefined, kConstant, kCopy };
  Values values = Values::kUndefined;
  c10::Scalar constant = 0;
  std::string op = {};  // the operator that made it
};

// [Note: state made before units are cut]
// A leaf changes its size when units are cut, and tensors that were made like it (Adagrad's sums) must get the new
// size. As long as such a tensor was not written to, all its elements are known without the elements of other ranks:
// they are one constant, or copies of the leaf's elements. Therefore it is made anew, as the same object, after its
// leaf has moved.
class LeafCompanions {
 public:
  void note(const at::Tensor& made, Likeness likeness, uint64_t leaf_version);
  bool empty() const { return companions_.empty(); }
  // Throws if a tensor was written to, because it then cannot be made anew (copies are exempt). `where`: its rank and
  // unit.
  void check_unwritten(const std::string& where) const;
  // Makes the unwritten tensors anew after `leaf` has moved. `leaf_version`: the version of the leaf before it moved.
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

}  // namespace fsdp::engine
