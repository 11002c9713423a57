// How each kind of layer is made.
#pragma once

#include <string>
#include <vector>

#include "fuzz_training/modules.h"

namespace fsdp::fuzz {

// What layers that are built one after the other share.
class Builder {
 public:
  explicit Builder(int64_t width) : width_(width) {}
  int64_t width() const { return width_; }

  std::shared_ptr<LayerImpl> make(const Layer& spec);
  const std::vector<std::shared_ptr<LayerImpl>>& made() const { return made_; }

  // The first square weight that was offered, for layers that share it; `own` where there is none.
  void offer_weight(const torch::Tensor& weight) { weights_.push_back(weight); }
  torch::Tensor shared_weight(const torch::Tensor& own) const { return weights_.empty() ? own : weights_.front(); }

 private:
  int64_t width_;
  std::vector<torch::Tensor> weights_;
  std::vector<std::shared_ptr<LayerImpl>> made_;
};

// Registers in `holder` what a layer of this kind has; returns its forward. Throws where the kind is unknown.
SingleImpl::Function make_kind(torch::nn::Module& holder, const Layer& spec, Builder& builder);

}  // namespace fsdp::fuzz
