// A decoder of attention blocks, made on a given device and in a given dtype. PyTorch's side is torch_transformer.py.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace fsdp::benchmarks {

struct TransformerSizes {
  int64_t layers, width, heads, vocabulary;
};

struct LinearImpl : torch::nn::Module {
  LinearImpl(int64_t in, int64_t out, const at::TensorOptions& options)
      : weight(register_parameter("weight", at::randn({out, in}, options).mul_(0.02))),
        bias(register_parameter("bias", at::zeros({out}, options))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

  at::Tensor weight, bias;
};
TORCH_MODULE(Linear);

struct NormImpl : torch::nn::Module {
  NormImpl(int64_t width, const at::TensorOptions& options)
      : weight(register_parameter("weight", at::ones({width}, options))),
        bias(register_parameter("bias", at::zeros({width}, options))) {}
  at::Tensor forward(const at::Tensor& x) { return at::layer_norm(x, weight.sizes(), weight, bias); }

  at::Tensor weight, bias;
};
TORCH_MODULE(Norm);

// Causal attention and two linear layers, each with a normalisation before it and a residual connection around it.
struct DecoderBlockImpl : torch::nn::Module {
  DecoderBlockImpl(const TransformerSizes& sizes, const at::TensorOptions& options)
      : heads(sizes.heads),
        norm1(register_module("norm1", Norm(sizes.width, options))),
        qkv(register_module("qkv", Linear(sizes.width, 3 * sizes.width, options))),
        out(register_module("out", Linear(sizes.width, sizes.width, options))),
        norm2(register_module("norm2", Norm(sizes.width, options))),
        up(register_module("up", Linear(sizes.width, 4 * sizes.width, options))),
        down(register_module("down", Linear(4 * sizes.width, sizes.width, options))) {}

  at::Tensor forward(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(norm1(x)).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor attention = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    const at::Tensor y = x + out(attention.transpose(1, 2).reshape({batch, length, width}));
    return y + down(at::gelu(up(norm2(y))));
  }

  int64_t heads;
  Norm norm1;
  Linear qkv, out;
  Norm norm2;
  Linear up, down;
};
TORCH_MODULE(DecoderBlock);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl(const TransformerSizes& sizes, const at::TensorOptions& options)
      : embedding(register_parameter("embedding", at::randn({sizes.vocabulary, sizes.width}, options).mul_(0.02))),
        norm(register_module("norm", Norm(sizes.width, options))),
        head(register_module("head", Linear(sizes.width, sizes.vocabulary, options))) {
    for (int64_t i = 0; i < sizes.layers; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), DecoderBlock(sizes, options)));
  }

  // Returns the loss of predicting the input tokens themselves. The task does not matter for the benchmark.
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = at::embedding(embedding, tokens);
    for (DecoderBlock& block : blocks) x = block(x);
    return torch::nn::functional::cross_entropy(head(norm(x)).flatten(0, 1), tokens.flatten());
  }

  at::Tensor embedding;
  Norm norm;
  Linear head;
  std::vector<DecoderBlock> blocks;
};
TORCH_MODULE(Transformer);

}  // namespace fsdp::benchmarks
