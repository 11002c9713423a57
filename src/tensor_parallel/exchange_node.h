// Functions of autograd whose backward exchanges gradients with other ranks.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <utility>

#include "tensor_parallel/exchange.h"
#include "torch_seams/autograd_node.h"

namespace fsdp::tensor_parallel {

// Holds the exchange weakly: a graph may outlive the sharded module.
class ExchangeNode : public torch::autograd::Node {
 public:
  // `split`: the parameter, or what else is split; for errors.
  ExchangeNode(const std::shared_ptr<Exchange>& exchange, std::string split)
      : exchange_(exchange), split_(std::move(split)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "fsdp: double backward (create_graph) through '", split_,
                "' is not supported: it is split over ranks (tensor parallelism)");
    const std::shared_ptr<Exchange> exchange = exchange_.lock();
    TORCH_CHECK(exchange, "fsdp: backward through '", split_, "' after its sharded module was destroyed");
    // Other ranks wait for this rank's gradient, even if it is zero.
    return {backward(*exchange, gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like())};
  }

 protected:
  virtual at::Tensor backward(Exchange& exchange, const at::Tensor& gradient) = 0;
  const std::string& split() const { return split_; }

 private:
  std::weak_ptr<Exchange> exchange_;
  std::string split_;
};

inline bool is_recorded(const at::Tensor& input) { return at::GradMode::is_enabled() && input.requires_grad(); }

// Returns `values` with `node` as the function that has computed them from `input`. The result is no view, as far as
// autograd knows, so that views of it keep it alive.
inline at::Tensor record(const at::Tensor& values, const at::Tensor& input, const seams::NodePtr& node) {
  at::Tensor result = values.detach();
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace fsdp::tensor_parallel
