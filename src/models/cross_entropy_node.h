// The node of the autograd graph that stands for a head and its loss: gradients that wait for backward.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <string>
#include <vector>

namespace fsdp::models {

// Of the sum of all tokens' losses; undefined where not asked for.
struct CrossEntropyGradients {
  at::Tensor hidden_states;  // [tokens, width]
  at::Tensor weight;
};

class CrossEntropyNode : public torch::autograd::Node {
 public:
  // labels: how many tokens the mean is over, as a tensor. sizes: of the hidden states.
  CrossEntropyNode(CrossEntropyGradients sums, const at::Tensor& labels, at::IntArrayRef sizes);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override;
  std::string name() const override { return "fsdp::FusedCrossEntropy"; }

 private:
  // Without the graph kept, nobody needs the sums again: they are scaled in their memory and given away.
  CrossEntropyGradients take_sums(bool keep);

  CrossEntropyGradients sums_;
  at::Tensor labels_;
  std::vector<int64_t> sizes_;
  bool released_ = false;
};

}  // namespace fsdp::models
