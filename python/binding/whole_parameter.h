// Whole parameters of sharded modules, seen from Python.
#pragma once

#include <torch/custom_class.h>

#include <string>
#include <vector>

#include "engine/unit.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/write_watch.h"

namespace fsdp::python {

// Returns the owner of a whole parameter's storage, also for a view of one. Null for other tensors, and for parameters
// whose engine was destroyed.
const seams::StorageOwner* owner_of_whole(const at::Tensor& tensor);
// Returns the unit of a whole parameter. Throws, naming `caller`, for other tensors.
engine::Unit& unit_of_whole(const at::Tensor& tensor, const char* caller);

// torch.classes.fsdp_cpp.Whole: functions on whole parameters and on the tensors that stand for their shards.
class Whole : public torch::CustomClassHolder {
 public:
  // Whether the tensor is a whole parameter of a sharded module, or a view of one.
  static bool is_whole(const at::Tensor& tensor) { return owner_of_whole(tensor) != nullptr; }
  // Whether its memory can be read now, without an operator.
  static bool is_gathered(const at::Tensor& tensor);
  // Returns this rank's part, the optimizer's leaf: 1-D, the same tensor whenever asked for.
  static at::Tensor leaf(const at::Tensor& whole);
  // Returns the memory of a leaf as a tensor with these sizes, strides and offset in the storage. Like the leaf's, its
  // detached tensors, .data included, and its views count their writes together with the leaf.
  static at::Tensor local(const at::Tensor& leaf, const std::vector<int64_t>& sizes,
                          const std::vector<int64_t>& strides, int64_t offset);
  // Whether the tensor stands for a gradient that lives in the shards, as the gradient of a whole parameter does.
  static bool is_gradient_stand_in(const at::Tensor& tensor);
  static std::string fqn(const at::Tensor& whole);
  // Returns the dimension that the cut by rows cuts.
  static int64_t shard_dim(const at::Tensor& whole);
  static std::string unit_name(const at::Tensor& whole);
  // Throws if a parameter of its tree has left the engine: its data or the parameter itself was replaced.
  static void check_membership(const at::Tensor& whole);
  // Lets `tensor`, which refers to the same memory as `leaf`, count its writes together with it.
  static void share_version(const at::Tensor& tensor, const at::Tensor& leaf);
  // Must be called before `leaf` is written by code that the dispatcher does not show to the engine.
  static void prepare_write(const at::Tensor& leaf);
  static void prepare_writes(const std::vector<at::Tensor>& leaves);
  // Must be called when memory is handed to a library that may write to it. Does nothing for other tensors than shards.
  static void note_export(const at::Tensor& tensor) { seams::note_export(tensor); }
};

void register_whole(torch::Library& library);

}  // namespace fsdp::python
