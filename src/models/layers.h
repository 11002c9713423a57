// Layers that several models are built from. Parameters are allocated uninitialised, with a given dtype and device,
// which the layers of torch::nn do not support: on the meta device they take no memory, and no random numbers are
// drawn.
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
  // A layer without bias that shares a parameter of another layer.
  explicit LinearImpl(const at::Tensor& shared_weight);
  at::Tensor forward(const at::Tensor& input);

  // Adds an uninitialised adapter with the dtype and device of the weight. Must be called at most once.
  void add_adapter(int64_t rank, double scale);

  at::Tensor weight;
  at::Tensor bias;            // undefined without bias
  at::Tensor lora_a, lora_b;  // undefined without an adapter
  double relative_std = 1.0;  // factor of initialize_parameters' std for the weight

 private:
  double adapter_scale_ = 0;
};
TORCH_MODULE(Linear);

// y = x W + b, as in GPT-2: weight [in_features, out_features], bias [out_features].
class Conv1DImpl : public torch::nn::Module {
 public:
  // `relative_std`: factor of initialize_parameters' std for the weight.
  Conv1DImpl(int64_t in_features, int64_t out_features, double relative_std, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight, bias;
  const double relative_std;
};
TORCH_MODULE(Conv1D);

// Looks up rows of `weight` [num_embeddings, dim] by index. The row `padding_idx` gets no gradient.
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t dim, std::optional<int64_t> padding_idx,
                const at::TensorOptions& options);
  // A layer that shares a parameter of another layer.
  explicit EmbeddingImpl(const at::Tensor& shared_weight);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;
  std::optional<int64_t> padding_idx;  // from 0 to num_embeddings - 1
  double relative_std = 1.0;           // as in Linear
};
TORCH_MODULE(Embedding);

// How RMSNorm rounds, where the dtype of the input is narrower than fp32, and which factor its weight stands for.
enum class RMSNormKind : uint8_t {
  kRoundedQuotient,  // weight * round(x / rms(x)), as in Llama
  kWideProduct,      // round(weight * (x / rms(x))), as in OLMo 2
  kOnePlusWeight,    // round((1 + weight) * (x / rms(x))), as in Gemma; the initial weight is 0
};

// weight * x / rms(x) over the last dimension. The quotient is computed in fp32 (fp64 for fp64 input); `kind` says when
// it is rounded to the dtype of the input.
class RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t dim, double eps, const at::TensorOptions& options,
              RMSNormKind kind = RMSNormKind::kRoundedQuotient);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  double initial_weight;  // 1, or 0 for kOnePlusWeight

 private:
  double eps_;
  RMSNormKind kind_;
};
TORCH_MODULE(RMSNorm);

// (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t dim, double eps, const at::TensorOptions& options, bool with_bias = true);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;  // undefined without bias

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

// Initialises the layers above, and those of experts.h, anywhere below `module` like transformers: weights of Linear,
// Conv1D and Embedding from normal(0, std * relative_std of the layer) (zero for the padding row), those of routers and
// experts from normal(0, std), biases zero, weights of norms one, or
// RMSNorm's initial_weight. Random numbers come from the default generator of the device, in module order. A parameter
// that several layers share is initialised by the first of them.
void initialize_parameters(torch::nn::Module& module, double std);

}  // namespace fsdp::models
