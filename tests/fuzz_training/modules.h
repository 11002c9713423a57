// The model of a case: a tree of layers from [batch, width] to [batch, width].
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fuzz_training/case.h"

namespace fsdp::fuzz {

// The rank and the step of a forward, and inputs in addition to the activations.
struct Call {
  int64_t rank = 0;
  int64_t step = 0;
  torch::Tensor ids{};  // [batch], not negative
};

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const Layer& spec) : spec_(spec) {}
  // Computes the layer without the effects of its options: repetitions, residual, recomputation, skipped steps.
  virtual torch::Tensor run(const torch::Tensor& x, const Call& call) = 0;
  torch::Tensor forward(const torch::Tensor& x, const Call& call);
  const Layer& spec() const { return spec_; }

 private:
  torch::Tensor apply(const torch::Tensor& x, const Call& call);
  const Layer spec_;
};

class Builder;

// A layer of one of the kinds.
class SingleImpl final : public LayerImpl {
 public:
  using Function = std::function<torch::Tensor(const torch::Tensor& x, const Call& call)>;
  SingleImpl(const Layer& spec, Builder& builder);
  torch::Tensor run(const torch::Tensor& x, const Call& call) override { return function_(x, call); }

 private:
  Function function_;
};

class GroupImpl final : public LayerImpl {
 public:
  GroupImpl(const Layer& spec, Builder& builder);
  torch::Tensor run(const torch::Tensor& x, const Call& call) override;

 private:
  std::vector<std::shared_ptr<LayerImpl>> layers_;
};

class NetImpl final : public torch::nn::Module {
 public:
  explicit NetImpl(const Model& model);
  torch::Tensor forward(torch::Tensor x, const Call& call);

  // The layers of the root, and all layers in the order of for_each_layer.
  const std::vector<std::shared_ptr<LayerImpl>>& layers() const { return layers_; }
  const std::vector<std::shared_ptr<LayerImpl>>& all_layers() const { return all_layers_; }

 private:
  std::vector<std::shared_ptr<LayerImpl>> layers_, all_layers_;
  torch::Tensor gain_;
};
TORCH_MODULE(Net);

// Returns the kinds of layers, without "group".
const std::vector<std::string>& layer_kinds();

// Returns each sharded parameter once, under its first name.
std::vector<std::pair<std::string, torch::Tensor>> sharded_parameters_of(const NetImpl& net);
// Returns the sharded parameters that require a gradient.
std::vector<torch::Tensor> trainable_parameters_of(const NetImpl& net);

}  // namespace fsdp::fuzz
