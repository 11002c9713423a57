// Gradients of sharded parameters, for torch.nn.utils.
#pragma once

#include <torch/custom_class.h>

#include <vector>

namespace fsdp::python {

// torch.classes.fsdp_cpp.Gradients: functions on lists of gradients. `wholes` are the whole parameters that they belong
// to, of any trees.
class Gradients : public torch::CustomClassHolder {
 public:
  // Waits for reductions in flight, after which the leaves have their gradients.
  static void settle(const std::vector<at::Tensor>& wholes);
  // Returns the p-norms of whole gradients: 1-D, in the order of `parts`, with torch::stack's dtype, on the device of
  // the first part. `parts`: this rank's part of each gradient, without rows if it has none. `norm_type`: any that
  // torch::linalg_vector_norm takes. The norms are those of DTensor's arithmetic: powers in the gradients' dtype, added
  // in rank order with a single rounding. Collective over the shard groups of the parameters.
  static at::Tensor norms(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& wholes,
                          double norm_type);
};

void register_gradients(torch::Library& library);

}  // namespace fsdp::python
