#include "fuzz_training/layer_kinds.h"

#include <map>
#include <stdexcept>

namespace fsdp::fuzz {
namespace {

namespace nn = torch::nn;
using torch::Tensor;
using Holder = torch::nn::Module;
using Function = SingleImpl::Function;
using Kind = Function (*)(Holder&, const Layer&, Builder&);

// ---------------------------------------------------------------- layers of torch::nn

Function linear(Holder& holder, const Layer&, Builder& builder) {
  auto layer = holder.register_module("layer", nn::Linear(builder.width(), builder.width()));
  builder.offer_weight(layer->weight);
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x); };
}

Function mlp(Holder& holder, const Layer& spec, Builder& builder) {
  auto up = holder.register_module("up", nn::Linear(builder.width(), spec.size));
  auto options = nn::LinearOptions(spec.size, builder.width()).bias(false);
  auto down = holder.register_module("down", nn::Linear(options));
  return [up, down](const Tensor& x, const Call&) mutable { return down->forward(torch::gelu(up->forward(x))); };
}

Function conv1d(Holder& holder, const Layer& spec, Builder&) {
  auto layer = holder.register_module("layer", nn::Conv1d(nn::Conv1dOptions(1, spec.size, 3).padding(1)));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x.unsqueeze(1)).mean(1); };
}

Function conv2d(Holder& holder, const Layer& spec, Builder&) {
  auto options = nn::Conv2dOptions(2, spec.size, {1, 3}).padding({0, 1}).bias(false);
  auto layer = holder.register_module("layer", nn::Conv2d(options));
  return [layer](const Tensor& x, const Call&) mutable {
    Tensor image = torch::stack({x, x * 0.5}, 1).unsqueeze(2);
    return layer->forward(image).mean(1).squeeze(1);
  };
}

// A convolution whose weight is not contiguous (channels last).
Function conv2d_last(Holder& holder, const Layer& spec, Builder&) {
  auto layer = holder.register_module("layer", nn::Conv2d(nn::Conv2dOptions(2, spec.size, {2, 3}).padding({1, 1})));
  layer->weight.set_data(layer->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  return [layer](const Tensor& x, const Call&) mutable {
    Tensor image = torch::stack({x, x * 0.5}, 1).unsqueeze(2);
    return layer->forward(image).mean(1).mean(1);
  };
}

Function layer_norm(Holder& holder, const Layer&, Builder& builder) {
  auto layer = holder.register_module("layer", nn::LayerNorm(nn::LayerNormOptions({builder.width()})));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x); };
}

Function group_norm(Holder& holder, const Layer&, Builder& builder) {
  auto layer = holder.register_module("layer", nn::GroupNorm(nn::GroupNormOptions(1, builder.width())));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x); };
}

Function batch_norm1d(Holder& holder, const Layer&, Builder& builder) {
  auto layer = holder.register_module("layer", nn::BatchNorm1d(builder.width()));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x); };
}

Function batch_norm2d(Holder& holder, const Layer&, Builder& builder) {
  auto layer = holder.register_module("layer", nn::BatchNorm2d(builder.width()));
  return [layer](const Tensor& x, const Call&) mutable {
    Tensor image = torch::stack({x, x * x}, 2).unsqueeze(3);
    return layer->forward(image).select(3, 0).select(2, 0);
  };
}

Function instance_norm(Holder& holder, const Layer&, Builder& builder) {
  auto options = nn::InstanceNorm1dOptions(builder.width()).affine(true).track_running_stats(true);
  auto layer = holder.register_module("layer", nn::InstanceNorm1d(options));
  return [layer](const Tensor& x, const Call&) mutable {
    return layer->forward(torch::stack({x, x * x, x + 1}, 2)).select(2, 0);
  };
}

Function embedding(Holder& holder, const Layer& spec, Builder& builder) {
  auto layer = holder.register_module("layer", nn::Embedding(spec.size, builder.width()));
  return [layer, rows = spec.size](const Tensor& x, const Call& call) mutable {
    return x + layer->forward(call.ids.remainder(rows));
  };
}

Function embedding_bag(Holder& holder, const Layer& spec, Builder& builder) {
  auto layer = holder.register_module("layer", nn::EmbeddingBag(spec.size, builder.width()));
  return [layer, rows = spec.size](const Tensor& x, const Call& call) mutable {
    return x + layer->forward(torch::stack({call.ids.remainder(rows), (call.ids + 1).remainder(rows)}, 1));
  };
}

Function bilinear(Holder& holder, const Layer&, Builder& builder) {
  const int64_t width = builder.width();
  auto layer = holder.register_module("layer", nn::Bilinear(nn::BilinearOptions(width, width, width)));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x, torch::tanh(x)); };
}

template <typename Recurrent, typename RecurrentOptions>
Function recurrent(Holder& holder, const Layer&, Builder& builder) {
  auto options = RecurrentOptions(builder.width(), builder.width()).batch_first(true);
  auto layer = holder.register_module("layer", Recurrent(options));
  return [layer](const Tensor& x, const Call&) mutable {
    return std::get<0>(layer->forward(torch::stack({x, x * 0.5}, 1))).select(1, 1);
  };
}

Function attention(Holder& holder, const Layer&, Builder& builder) {
  auto options = nn::MultiheadAttentionOptions(builder.width(), 1).add_bias_kv(true);
  auto layer = holder.register_module("layer", nn::MultiheadAttention(options));
  return [layer](const Tensor& x, const Call&) mutable {
    Tensor row = x.unsqueeze(1);
    return std::get<0>(layer->forward(row, row, row)).squeeze(1);
  };
}

Function prelu(Holder& holder, const Layer& spec, Builder& builder) {
  const int64_t count = spec.size > 3 ? builder.width() : 1;
  auto layer = holder.register_module("layer", nn::PReLU(nn::PReLUOptions().num_parameters(count)));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x); };
}

Function encoder(Holder& holder, const Layer& spec, Builder& builder) {
  auto options = nn::TransformerEncoderLayerOptions(builder.width(), 1).dim_feedforward(spec.size).dropout(0);
  auto layer = holder.register_module("layer", nn::TransformerEncoderLayer(options));
  return [layer](const Tensor& x, const Call&) mutable { return layer->forward(x.unsqueeze(1)).squeeze(1); };
}

Function activation(Holder&, const Layer&, Builder&) {
  return [](const Tensor& x, const Call&) { return torch::silu(x); };
}

// ---------------------------------------------------------------- modules with parameters of their own

Tensor parameter(Holder& holder, const char* name, at::IntArrayRef sizes) {
  return holder.register_parameter(name, torch::empty(sizes));
}

Function bare(Holder& holder, const Layer&, Builder& builder) {
  Tensor scale = parameter(holder, "scale", {builder.width()});
  Tensor shift = parameter(holder, "shift", {builder.width()});
  return [scale, shift](const Tensor& x, const Call&) { return x * scale + shift; };
}

// One parameter that is read in two pieces.
Function views(Holder& holder, const Layer&, Builder& builder) {
  Tensor weight = parameter(holder, "weight", {2, builder.width(), builder.width()});
  return [weight](const Tensor& x, const Call&) {
    auto halves = weight.chunk(2);
    return x.mm(halves[0].squeeze(0)) + x.mm(halves[1].squeeze(0).t());
  };
}

// Multiplies by a tensor that is computed from a parameter.
Function derived(Holder& holder, const Layer&, Builder& builder) {
  Tensor weight = parameter(holder, "weight", {builder.width(), builder.width()});
  return [weight](const Tensor& x, const Call&) { return x.mm((weight * 2).t()); };
}

// Parameters of three dtypes in one module.
Function dtypes(Holder& holder, const Layer&, Builder& builder) {
  const int64_t width = builder.width();
  Tensor scale = parameter(holder, "scale", {width});
  Tensor narrow = holder.register_parameter("narrow", torch::empty({width}, torch::kFloat));
  Tensor order = holder.register_parameter("order", torch::empty({width}, torch::kLong), /*requires_grad=*/false);
  return [scale, narrow, order](const Tensor& x, const Call&) {
    return x.index_select(1, order) * scale + narrow.to(torch::kDouble);
  };
}

Function scalar(Holder& holder, const Layer&, Builder&) {
  Tensor factor = parameter(holder, "factor", {});
  return [factor](const Tensor& x, const Call&) { return x * (factor + 1); };
}

Function empty(Holder& holder, const Layer&, Builder&) {
  Tensor none = parameter(holder, "none", {0, 3});
  return [none](const Tensor& x, const Call&) { return x + none.sum(); };
}

Function empty_beside(Holder& holder, const Layer&, Builder& builder) {
  Tensor none = parameter(holder, "none", {0, 3});
  Tensor shift = parameter(holder, "shift", {builder.width()});
  return [none, shift](const Tensor& x, const Call&) { return x + shift + none.sum(); };
}

// Shares the weight of an earlier linear layer, or has its own weight if there is none.
Function tied(Holder& holder, const Layer&, Builder& builder) {
  Tensor weight = builder.shared_weight({});
  if (!weight.defined()) weight = torch::empty({builder.width(), builder.width()});
  weight = holder.register_parameter("weight", weight);
  return [weight](const Tensor& x, const Call&) { return torch::nn::functional::linear(x, weight); };
}

Function unused(Holder& holder, const Layer& spec, Builder& builder) {
  holder.register_module("layer", nn::Linear(builder.width(), spec.size));
  return [](const Tensor& x, const Call&) { return x; };
}

Function unused_beside(Holder& holder, const Layer&, Builder& builder) {
  Tensor scale = parameter(holder, "scale", {builder.width()});
  parameter(holder, "spare", {3});
  return [scale](const Tensor& x, const Call&) { return x * scale; };
}

// Always uses `scale`, and uses `extra` only if `use` returns true.
Function sometimes(Holder& holder, Builder& builder, bool (*use)(const Call&)) {
  Tensor scale = parameter(holder, "scale", {builder.width()});
  Tensor extra = parameter(holder, "extra", {builder.width()});
  return [scale, extra, use](const Tensor& x, const Call& call) { return use(call) ? x * scale + extra : x * scale; };
}

Function by_step(Holder& holder, const Layer&, Builder& builder) {
  return sometimes(holder, builder, [](const Call& call) { return call.step % 2 == 1; });
}
Function by_rank(Holder& holder, const Layer&, Builder& builder) {
  return sometimes(holder, builder, [](const Call& call) { return call.rank == 1; });
}
Function by_rank_and_step(Holder& holder, const Layer&, Builder& builder) {
  return sometimes(holder, builder, [](const Call& call) { return (call.rank + call.step) % 2 == 0; });
}

// Keeps a running mean and a count in buffers, and has a constant buffer.
Function buffered(Holder& holder, const Layer&, Builder& builder) {
  Tensor scale = parameter(holder, "scale", {builder.width()});
  Tensor mean = holder.register_buffer("mean", torch::zeros({builder.width()}));
  Tensor slope = holder.register_buffer("slope", torch::full({builder.width()}, 0.75));
  Tensor count = holder.register_buffer("count", torch::zeros({}, torch::kLong));
  return [=, &holder](const Tensor& x, const Call&) mutable {
    if (holder.is_training()) {
      torch::NoGradGuard no_grad;
      mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
      count.add_(1);
    }
    return x * scale * slope - mean.detach().clone();
  };
}

const std::map<std::string, Kind>& kinds() {
  static const std::map<std::string, Kind> all = {
      {"linear", linear},
      {"mlp", mlp},
      {"conv1d", conv1d},
      {"conv2d", conv2d},
      {"conv2d_last", conv2d_last},
      {"layer_norm", layer_norm},
      {"group_norm", group_norm},
      {"batch_norm1d", batch_norm1d},
      {"batch_norm2d", batch_norm2d},
      {"instance_norm", instance_norm},
      {"embedding", embedding},
      {"embedding_bag", embedding_bag},
      {"bilinear", bilinear},
      {"lstm", recurrent<nn::LSTM, nn::LSTMOptions>},
      {"gru", recurrent<nn::GRU, nn::GRUOptions>},
      {"rnn", recurrent<nn::RNN, nn::RNNOptions>},
      {"attention", attention},
      {"prelu", prelu},
      {"encoder", encoder},
      {"activation", activation},
      {"bare", bare},
      {"views", views},
      {"derived", derived},
      {"dtypes", dtypes},
      {"scalar", scalar},
      {"empty", empty},
      {"empty_beside", empty_beside},
      {"tied", tied},
      {"unused", unused},
      {"unused_beside", unused_beside},
      {"by_step", by_step},
      {"by_rank", by_rank},
      {"by_rank_and_step", by_rank_and_step},
      {"buffered", buffered},
  };
  return all;
}

}  // namespace

SingleImpl::Function make_kind(Holder& holder, const Layer& spec, Builder& builder) {
  const auto kind = kinds().find(spec.kind);
  if (kind == kinds().end()) throw std::runtime_error("unknown kind of layer '" + spec.kind + "'");
  return kind->second(holder, spec, builder);
}

const std::vector<std::string>& layer_kinds() {
  static const auto names = [] {
    std::vector<std::string> result;
    for (const auto& [name, make] : kinds()) result.push_back(name);
    return result;
  }();
  return names;
}

}  // namespace fsdp::fuzz
