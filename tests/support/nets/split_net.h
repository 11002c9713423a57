// A small transformer in plain LibTorch, and a plan that splits it over ranks.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fsdp.h"
#include "support/nets/tied_linear.h"
#include "support/training/sharding.h"

namespace fsdp::testing {

struct SplitNetShape {
  static constexpr int64_t kVocabulary = 13, kWidth = 10, kHead = 5, kHidden = 11;
  int64_t heads = 6, shared = 3;  // of queries, and of keys and values
  bool tied = false, recomputes = false;
  bool splits_sequence = false;  // sequence parallelism
};

// SplitAttention whose heads of queries share heads of keys and values, with a norm of each head of queries.
struct SplitAttentionImpl : torch::nn::Module {
  SplitAttentionImpl(int64_t heads, int64_t shared) : ratio(heads / shared) {
    q = register_module("q", torch::nn::Linear(SplitNetShape::kWidth, heads * SplitNetShape::kHead));
    k = register_module(
        "k",
        torch::nn::Linear(torch::nn::LinearOptions(SplitNetShape::kWidth, shared * SplitNetShape::kHead).bias(false)));
    v = register_module("v", torch::nn::Linear(SplitNetShape::kWidth, shared * SplitNetShape::kHead));
    o = register_module("o", torch::nn::Linear(heads * SplitNetShape::kHead, SplitNetShape::kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({SplitNetShape::kHead})));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = [&](const torch::Tensor& y) {
      return y.view({y.size(0), y.size(1), -1, SplitNetShape::kHead}).transpose(1, 2);
    };
    const torch::Tensor queries = norm->forward(heads(q->forward(x)));
    const torch::Tensor keys = heads(k->forward(x)).repeat_interleave(ratio, 1);
    const torch::Tensor values = heads(v->forward(x)).repeat_interleave(ratio, 1);
    const torch::Tensor weights = torch::matmul(queries, keys.transpose(2, 3)).softmax(-1);
    return o->forward(torch::matmul(weights, values).transpose(1, 2).flatten(2));
  }
  int64_t ratio;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(SplitAttention);

// The MLP multiplies in three ways: with two dimensions (addmm), with three, and with a weight of two layers.
struct SplitLayerImpl : torch::nn::Module {
  SplitLayerImpl(int64_t heads, int64_t shared, bool flattens) : flattens(flattens) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({SplitNetShape::kWidth})));
    attention = register_module("attention", SplitAttention(heads, shared));
    up = register_module("up", torch::nn::Linear(SplitNetShape::kWidth, 2 * SplitNetShape::kHidden));
    down = register_module("down", torch::nn::Linear(SplitNetShape::kHidden, SplitNetShape::kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + attention->forward(norm->forward(x));
    const std::vector<torch::Tensor> halves = up->forward(norm->forward(y)).chunk(2, -1);
    const torch::Tensor product = halves[0].tanh() * halves[1];
    return y + (flattens ? down->forward(product.flatten(0, 1)).view(y.sizes()) : down->forward(product));
  }
  bool flattens;  // which loses the dimension of positions
  torch::nn::LayerNorm norm{nullptr};
  SplitAttention attention{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(SplitLayer);

struct SplitNetImpl : torch::nn::Module {
  explicit SplitNetImpl(const SplitNetShape& shape) : recomputes(shape.recomputes) {
    embed = register_module("embed", torch::nn::Embedding(SplitNetShape::kVocabulary, SplitNetShape::kWidth));
    for (int i = 0; i < 2; ++i) layers->push_back(SplitLayer(shape.heads, shape.shared, !shape.splits_sequence));
    register_module("layers", layers);
    const auto bare = torch::nn::LinearOptions(SplitNetShape::kWidth, SplitNetShape::kVocabulary).bias(false);
    if (shape.tied) head = std::make_shared<TiedLinearImpl>(embed->weight, /*bias=*/false);
    if (!shape.tied) head = std::make_shared<torch::nn::LinearImpl>(bare);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = embed->forward(ids);
    for (const auto& layer : *layers) {
      const auto run = [&layer](const torch::Tensor& y) { return layer->as<SplitLayerImpl>()->forward(y); };
      x = recomputes ? activation_checkpoint(run, x) : run(x);
    }
    return head->forward(x);
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    return torch::nn::functional::cross_entropy(forward(ids).view({-1, SplitNetShape::kVocabulary}),
                                                ids.roll(1, 1).flatten());
  }
  bool recomputes;
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  std::shared_ptr<torch::nn::LinearImpl> head;
};
TORCH_MODULE(SplitNet);

inline std::vector<TensorParallelRule> plan_of(const SplitNetShape& shape) {
  std::vector<TensorParallelRule> plan = {
      {"embed", SplitStyle::kVocabulary},
      {"head", SplitStyle::kColwiseGathered},
      {"layers.*.attention.q", SplitStyle::kColwise, shape.shared},
      {"layers.*.attention.k", SplitStyle::kColwise, shape.shared},
      {"layers.*.attention.v", SplitStyle::kColwise, shape.shared},
      {"layers.*.attention.o", SplitStyle::kRowwise, shape.shared},
      {"layers.*.attention.norm", SplitStyle::kSharedByParts},
      {"layers.*.up", SplitStyle::kColwise, SplitNetShape::kHidden, {SplitNetShape::kHidden, SplitNetShape::kHidden}},
      {"layers.*.down", SplitStyle::kRowwise}};
  if (shape.splits_sequence) plan.push_back({"layers.*.norm", SplitStyle::kSharedByParts});
  return plan;
}

// Returns a model whose values depend on no generator, which the threads of ranks would share.
inline SplitNet make_split_net(const SplitNetShape& shape, at::ScalarType dtype = at::kDouble) {
  SplitNet net(shape);
  net->to(dtype);
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (const torch::Tensor& parameter : net->parameters()) {
    const torch::Tensor places = torch::arange(parameter.numel(), at::kDouble);
    parameter.copy_(torch::sin(places * 0.7 + ++number).mul(0.6).view(parameter.sizes()));
  }
  return net;
}

inline torch::Tensor split_net_ids(int step, int data_rank) {
  return (torch::arange(2 * 6) * (3 + data_rank + 2 * step) % SplitNetShape::kVocabulary).view({2, 6});
}

inline Options split_net_options(DeviceMesh& mesh, const SplitNetShape& shape,
                                 ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  Options options;
  options.mesh = mesh.data_parallel();
  options.sharding_strategy = strategy;
  options.auto_wrap_policy = module_class_policy<SplitLayerImpl>();
  options.tensor_parallel = {mesh.group("tp"), plan_of(shape)};
  if (shape.splits_sequence) options.tensor_parallel->sequence_dim = 1;
  return options;
}

}  // namespace fsdp::testing
