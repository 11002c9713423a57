// The autograd node that represents a lookup.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <string>

#include "sparse/row_exchange.h"

namespace fsdp::sparse {

// Sends the gradient of a lookup's rows to their owners and passes the gradient of this rank's own rows to `take`.
// Passes nothing to the next node, whose tensor only indicates that a gradient is required.
class LookupNode : public torch::autograd::Node {
 public:
  LookupNode(std::shared_ptr<RowExchange> exchange, int64_t width, std::function<void(SparseRows)> take);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "fsdp::EmbeddingLookup"; }

 private:
  std::shared_ptr<RowExchange> exchange_;  // null once released
  int64_t width_;
  std::function<void(SparseRows)> take_;
};

}  // namespace fsdp::sparse
