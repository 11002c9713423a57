// The autograd node of a fused head and loss. It stores gradients until backward.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

namespace fsdp::models {

// Gradients of the sum of all tokens' losses; undefined if not requested.
struct CrossEntropyGradients {
  at::Tensor hidden_states;  // [tokens, width]
  at::Tensor weight;
};

class CrossEntropyNode : public torch::autograd::Node {
 public:
  // labels: the number of tokens that the mean is over, as a tensor. sizes: the sizes of the hidden states.
  CrossEntropyNode(CrossEntropyGradients sums, const at::Tensor& labels, at::IntArrayRef sizes);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "fsdp::FusedCrossEntropy"; }

 private:
  // Returns the sums. If the graph is not kept, the sums are not needed again: they are moved out, and the caller may
  // scale them in place.
  CrossEntropyGradients take_sums(bool keep);

  CrossEntropyGradients sums_;
  at::Tensor labels_;
  std::vector<int64_t> sizes_;
  bool released_ = false;
};

}  // namespace fsdp::models
