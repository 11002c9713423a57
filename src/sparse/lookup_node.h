// The node of the autograd graph that stands for a lookup.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <string>

#include "sparse/row_exchange.h"

namespace fsdp::sparse {

// Sends the gradient of a lookup's rows to their owners and hands this rank's own to `take`. Nothing goes on to the
// next node, whose tensor only says that a gradient is wanted.
class LookupNode : public torch::autograd::Node {
 public:
  LookupNode(std::shared_ptr<RowExchange> exchange, int64_t width, std::function<void(SparseRows)> take);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "fsdp::EmbeddingLookup"; }

 private:
  std::shared_ptr<RowExchange> exchange_;  // null: released
  int64_t width_;
  std::function<void(SparseRows)> take_;
};

}  // namespace fsdp::sparse
