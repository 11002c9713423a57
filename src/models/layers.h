// Layers that several models are built from. Parameters are allocated uninitialised with a dtype and on a
// device, which torch::nn's own layers cannot do: on the meta device they take no memory, and nothing draws
// random numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace fsdp::models {

// y = x Wᵀ + b. Parameters: weight [out_features, in_features], bias [out_features]; with a low-rank adapter (lora.h)
// also lora_A [rank, in_features] and lora_B [out_features, rank], which add scale * x Aᵀ Bᵀ.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, bool with_bias, const at::TensorOptions& options);
  // Without bias, over a parameter that another layer owns too.
  explicit LinearImpl(const at::Tensor& shared_weight);
  at::Tensor forward(const at::Tensor& input);

  // Adds an adapter of the weight's dtype and device, uninitialised. Once.
  void add_adapter(int64_t rank, double scale);

  at::Tensor weight;
  at::Tensor bias;            // undefined without bias
  at::Tensor lora_a, lora_b;  // undefined without an adapter
  double relative_std = 1.0;  // initialize_parameters draws the weight with its std times this

 private:
  double adapter_scale_ = 0;
};
TORCH_MODULE(Linear);

// y = x W + b, as GPT-2 has it: weight [in_features, out_features], bias [out_features].
class Conv1DImpl : public torch::nn::Module {
 public:
  // `relative_std`: initialize_parameters draws the weight with its std times this.
  Conv1DImpl(int64_t in_features, int64_t out_features, double relative_std, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
  const double relative_std;
};
TORCH_MODULE(Conv1D);

// Rows of `weight` [num_embeddings, dim] by index. The row `padding_idx` gets no gradient.
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t dim, std::optional<int64_t> padding_idx,
                const at::TensorOptions& options);
  // Over a parameter that another layer owns too.
  explicit EmbeddingImpl(const at::Tensor& shared_weight);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;
  std::optional<int64_t> padding_idx;  // from 0 to num_embeddings - 1
  double relative_std = 1.0;           // as in Linear
};
TORCH_MODULE(Embedding);

// weight * x / rms(x) over the last dimension. The quotient is formed in fp32 (fp64 for fp64 input) and
// rounded to the dtype of the input before the product with the weight.
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t dim, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  double initial_weight = 1.0;

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

// (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t dim, double eps, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

// Initialises the layers above anywhere below `module` as transformers does: normal(0, std) for the weights
// of Linear, Conv1D and Embedding (zero for the padding row), where std is multiplied with the layer's relative_std;
// zero biases; one for weights of norms, or what RMSNorm has as initial_weight; random
// numbers come from the default generator of the device, in module order. A parameter shared by several layers
// is initialised by the first.
void initialize_parameters(torch::nn::Module& module, double std);

}  // namespace fsdp::models
