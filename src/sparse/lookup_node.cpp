#include "sparse/lookup_node.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::sparse {

LookupNode::LookupNode(std::shared_ptr<RowExchange> exchange, int64_t width, std::function<void(SparseRows)> take)
    : exchange_(std::move(exchange)), width_(width), take_(std::move(take)) {}

torch::autograd::variable_list LookupNode::apply(torch::autograd::variable_list&& gradients) {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "split embedding: double backward (create_graph) is not supported: gradients of rows leave the graph for "
              "the ranks that own them");
  TORCH_CHECK(exchange_, torch::autograd::ERR_BACKWARD_TWICE);
  // Other ranks wait for this rank's gradient, even if it is zero.
  const at::Tensor gradient = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
  take_(exchange_->send_back(gradient.reshape({-1, width_})));
  return {at::Tensor()};
}

void LookupNode::release_variables() { exchange_.reset(); }

}  // namespace fsdp::sparse
