// Places of parameters in flattened units.
#pragma once

#include <torch/custom_class.h>

#include <vector>

namespace fsdp::python {

// torch.classes.fsdp_cpp.FlatPlace: functions on whole parameters of units with the flat cut, which concatenate their
// parameters and give each rank an equal part. They throw for other tensors.
struct FlatPlace : torch::CustomClassHolder {
  // Returns this rank's part of the parameter's FlatParameter, the leaf of optimizers without use_orig_params: 1-D, the
  // same tensor whenever asked for.
  static at::Tensor flat_leaf(const at::Tensor& whole);
  // Returns five numbers: the offset of the parameter in its FlatParameter, its number of elements, the number of
  // elements of each rank's part (padding included), this rank's place in the shard group, the size of that group.
  static std::vector<int64_t> of(const at::Tensor& whole);
};

void register_flat_place(torch::Library& library);

}  // namespace fsdp::python
