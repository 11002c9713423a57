// Makes layers of each kind.
#pragma once

#include <string>
#include <vector>

#include "fuzz_training/modules.h"

namespace fsdp::fuzz {

// Builds layers one after the other, and holds the state that they share.
class Builder {
 public:
  explicit Builder(int64_t width) : width_(width) {}
  int64_t width() const { return width_; }

  std::shared_ptr<LayerImpl> make(const Layer& spec);
  const std::vector<std::shared_ptr<LayerImpl>>& made() const { return made_; }

  // shared_weight returns the first square weight that was offered, for layers that share it, or `own` if there is
  // none.
  void offer_weight(const torch::Tensor& weight) { weights_.push_back(weight); }
  torch::Tensor shared_weight(const torch::Tensor& own) const { return weights_.empty() ? own : weights_.front(); }

 private:
  int64_t width_;
  std::vector<torch::Tensor> weights_;
  std::vector<std::shared_ptr<LayerImpl>> made_;
};

// Registers the parameters, buffers and modules of this kind of layer in `holder` and returns its forward. Throws if
// the kind is unknown.
SingleImpl::Function make_kind(torch::nn::Module& holder, const Layer& spec, Builder& builder);

}  // namespace fsdp::fuzz
