// Ordinary layers and modules train as sharded models as they do as plain ones, to the bit, in the strictest mode.
#include "engine/engine.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_same;
using testing::expect_trains_alike;
using testing::gradients_of;
using testing::numbers;
using testing::same_bits;
using testing::seeded;
using testing::shard_strictly;
using testing::weights_of;

// Trains a module that consists of one layer, which `forward` calls.
template <typename Layer>
void expect_layer_trains_alike(const std::function<Layer()>& make,
                               const std::function<torch::Tensor(Layer&)>& forward) {
  struct Holder : torch::nn::Module {
    explicit Holder(Layer made) : layer(register_module("layer", std::move(made))) {}
    Layer layer;
  };
  expect_trains_alike([&] { return std::make_shared<Holder>(make()); },
                      [&](auto& holder) { return forward(holder->layer); });
}

torch::Tensor ids(int64_t count = 12, int64_t below = 20) { return (torch::arange(count) * 7 % below).view({2, -1}); }

// ---- layers

TEST(Layers, TransformerEncoder) {
  expect_layer_trains_alike<torch::nn::TransformerEncoder>(
      [] {
        auto layer = torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.1);
        return torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, 2));
      },
      [](auto& layer) { return layer(numbers({3, 2, 8})).pow(2).sum(); });
}

TEST(Layers, TransformerDecoder) {
  expect_layer_trains_alike<torch::nn::TransformerDecoder>(
      [] {
        auto layer = torch::nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.1);
        return torch::nn::TransformerDecoder(torch::nn::TransformerDecoderOptions(layer, 2));
      },
      [](auto& layer) { return layer(numbers({3, 2, 8}), numbers({4, 2, 8})).pow(2).sum(); });
}

TEST(Layers, Transformer) {
  expect_layer_trains_alike<torch::nn::Transformer>(
      [] { return torch::nn::Transformer(torch::nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(9)); },
      [](auto& layer) { return layer(numbers({3, 2, 8}), numbers({4, 2, 8})).pow(2).sum(); });
}

TEST(Layers, MultiheadAttention) {
  for (bool packed : {true, false}) {
    expect_layer_trains_alike<torch::nn::MultiheadAttention>(
        [&] {
          auto options = torch::nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true);
          if (!packed) options.kdim(6).vdim(6);
          return torch::nn::MultiheadAttention(options);
        },
        [&](auto& layer) {
          auto [out, weights] =
              layer(numbers({3, 2, 8}), numbers({4, 2, packed ? 8 : 6}), numbers({4, 2, packed ? 8 : 6}));
          return out.pow(2).sum() + weights.pow(3).sum();
        });
  }
}

TEST(Layers, Lstm) {
  expect_layer_trains_alike<torch::nn::LSTM>(
      [] {
        return torch::nn::LSTM(
            torch::nn::LSTMOptions(5, 4).num_layers(2).bidirectional(true).batch_first(true).dropout(0.2).proj_size(3));
      },
      [](auto& layer) {
        auto [out, state] = layer(numbers({3, 6, 5}));
        return out.pow(2).sum() + std::get<1>(state).sum();
      });
}

TEST(Layers, Gru) {
  expect_layer_trains_alike<torch::nn::GRU>(
      [] { return torch::nn::GRU(torch::nn::GRUOptions(5, 4).num_layers(2).bidirectional(true)); },
      [](auto& layer) { return std::get<0>(layer(numbers({3, 6, 5}))).pow(2).sum(); });
}

TEST(Layers, Rnn) {
  expect_layer_trains_alike<torch::nn::RNN>(
      [] { return torch::nn::RNN(torch::nn::RNNOptions(5, 4).nonlinearity(torch::kReLU)); },
      [](auto& layer) { return std::get<0>(layer(numbers({3, 6, 5}))).pow(2).sum(); });
}

TEST(Layers, Cells) {
  expect_layer_trains_alike<torch::nn::LSTMCell>([] { return torch::nn::LSTMCell(5, 4); },
                                                 [](auto& layer) {
                                                   auto state = layer(numbers({3, 5}));
                                                   state = layer(numbers({3, 5}) * 2, state);  // the same cell twice
                                                   return std::get<0>(state).sum() + std::get<1>(state).pow(2).sum();
                                                 });
  expect_layer_trains_alike<torch::nn::GRUCell>(
      [] { return torch::nn::GRUCell(5, 4); },
      [](auto& layer) { return layer(numbers({3, 5}), layer(numbers({3, 5}) / 2)).sum(); });
  expect_layer_trains_alike<torch::nn::RNNCell>(
      [] { return torch::nn::RNNCell(5, 4); },
      [](auto& layer) { return layer(numbers({3, 5}), layer(numbers({3, 5}) / 2)).sum(); });
}

TEST(Layers, Convolutions) {
  expect_layer_trains_alike<torch::nn::Conv1d>(
      [] { return torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).groups(2).padding(1)); },
      [](auto& layer) { return layer(numbers({2, 4, 9})).pow(2).sum(); });
  expect_layer_trains_alike<torch::nn::Conv2d>(
      [] {
        return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).stride(2).padding(1).padding_mode(torch::kCircular));
      },
      [](auto& layer) { return layer(numbers({2, 3, 7, 7})).pow(2).sum(); });
  expect_layer_trains_alike<torch::nn::Conv3d>(
      [] { return torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 3, 2).bias(false)); },
      [](auto& layer) { return layer(numbers({1, 2, 4, 4, 4})).pow(2).sum(); });
  expect_layer_trains_alike<torch::nn::ConvTranspose2d>(
      [] { return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(3, 5, 3).stride(2)); },
      [](auto& layer) { return layer(numbers({2, 3, 4, 4})).pow(2).sum(); });
}

TEST(Layers, ChannelsLastConvolutions) {
  expect_layer_trains_alike<torch::nn::Sequential>(
      [] {
        torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 7, 3)), torch::nn::ReLU(),
                                  torch::nn::Conv2d(torch::nn::Conv2dOptions(7, 14, 3).groups(7)),
                                  torch::nn::BatchNorm2d(14), torch::nn::ConvTranspose2d(14, 5, 3));
        for (torch::Tensor& parameter : net->parameters()) {
          if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
        return net;
      },
      [](auto& layer) {
        EXPECT_TRUE(layer->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
        torch::Tensor images = numbers({2, 3, 10, 10}).contiguous(at::MemoryFormat::ChannelsLast);
        return layer->forward(images).pow(2).mean();
      });
}

TEST(Layers, Normalisations) {
  expect_layer_trains_alike<torch::nn::BatchNorm1d>(
      [] { return torch::nn::BatchNorm1d(5); },
      [](auto& layer) { return layer(numbers({4, 5})).pow(3).sum() + layer->running_mean.sum(); });
  expect_layer_trains_alike<torch::nn::BatchNorm2d>(
      [] {
        torch::nn::BatchNorm2d norm(5);
        norm->eval();
        return norm;
      },
      [](auto& layer) { return layer(numbers({4, 5, 2, 2})).pow(3).sum(); });
  expect_layer_trains_alike<torch::nn::GroupNorm>([] { return torch::nn::GroupNorm(2, 6); },
                                                  [](auto& layer) { return layer(numbers({4, 6, 3})).pow(3).sum(); });
  expect_layer_trains_alike<torch::nn::InstanceNorm1d>(
      [] { return torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(6).affine(true)); },
      [](auto& layer) { return layer(numbers({4, 6, 3})).pow(3).sum(); });
  expect_layer_trains_alike<torch::nn::LayerNorm>(
      [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({3, 5})); },
      [](auto& layer) { return layer(numbers({4, 3, 5})).pow(3).sum(); });
}

TEST(Layers, Embeddings) {
  for (bool sparse : {false, true}) {
    expect_layer_trains_alike<torch::nn::Embedding>(
        [&] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(sparse).padding_idx(7)); },
        [](auto& layer) { return layer(ids()).pow(2).sum(); });
    expect_layer_trains_alike<torch::nn::EmbeddingBag>(
        [&] { return torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(20, 3).sparse(sparse).mode(torch::kSum)); },
        [](auto& layer) { return layer(ids()).pow(2).sum(); });
  }
}

TEST(Layers, BilinearPReluAndLosses) {
  expect_layer_trains_alike<torch::nn::Bilinear>(
      [] { return torch::nn::Bilinear(3, 4, 5); },
      [](auto& layer) { return layer(numbers({2, 3}), numbers({2, 4})).pow(2).sum(); });
  expect_layer_trains_alike<torch::nn::PReLU>(
      [] { return torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(3)); },
      [](auto& layer) { return layer(numbers({4, 3}) - 0.3).pow(2).sum(); });
  expect_layer_trains_alike<torch::nn::AdaptiveLogSoftmaxWithLoss>(
      [] {
        return torch::nn::AdaptiveLogSoftmaxWithLoss(
            torch::nn::AdaptiveLogSoftmaxWithLossOptions(8, 12, {4, 8}).div_value(2));
      },
      [](auto& layer) { return layer(numbers({6, 8}), torch::arange(6) * 2).output.sum(); });
}

// ---- modules

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embed = register_module("embed", torch::nn::Embedding(20, 6));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    head = register_parameter("head", embed->weight);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor head;
};

TEST(Modules, TiedWeights) {
  expect_trains_alike([] { return std::make_shared<TiedImpl>(); },
                      [](auto& m) {
                        torch::Tensor logits = torch::linear(m->norm(m->embed(ids())), m->head);
                        return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids().flatten());
                      });
}

TEST(Modules, OddSizesInOneUnit) {
  Options options = testing::one_rank_options();
  options.auto_wrap_policy = {};
  expect_trains_alike(
      [] {
        return std::make_shared<torch::nn::SequentialImpl>(
            torch::nn::Linear(8, 7), torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})), torch::nn::Linear(7, 129),
            torch::nn::GELU(), torch::nn::Linear(129, 65), torch::nn::LayerNorm(torch::nn::LayerNormOptions({65})));
      },
      [](auto& m) { return m->forward(numbers({4, 8})).pow(3).sum(); }, options);
}

TEST(Modules, DropoutWithTheSameSeed) {
  expect_trains_alike(
      [] {
        return std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(8, 16), torch::nn::Dropout(0.5),
                                                           torch::nn::Linear(16, 8));
      },
      [](auto& m) {
        torch::Tensor y = m->forward(numbers({4, 8}));
        return torch::nn::functional::dropout(y, torch::nn::functional::DropoutFuncOptions().p(0.3)).pow(2).sum();
      });
}

// Evaluation between steps, in every way, does not disturb training and sees the current weights.
TEST(Modules, EvaluationBetweenSteps) {
  for (bool strict : {true, false}) {
    SCOPED_TRACE(strict);
    auto make = [] {
      return std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(8, 8), torch::nn::Tanh(),
                                                         torch::nn::Linear(8, 8));
    };
    auto plain = seeded(make), model = seeded(make);
    Options options = testing::one_rank_options();
    options.param_dtype = torch::kFloat;
    auto sharded = fully_shard(*model, options);
    sharded->engine().gatherer().set_strict(strict);
    torch::optim::SGD want(plain->parameters(), 0.1), got(sharded->parameters(), 0.1);
    auto evaluate = [&] {
      torch::Tensor expected = plain->forward(numbers({4, 8})).detach();
      {
        torch::NoGradGuard no_grad;
        EXPECT_TRUE(same_bits(model->forward(numbers({4, 8})), expected));
      }
      c10::InferenceMode inference;
      EXPECT_TRUE(torch::equal(model->forward(numbers({4, 8})), expected));
    };
    for (int step = 0; step < 3; ++step) {
      for (auto& [m, optimizer] : {std::pair{&plain, &want}, std::pair{&model, &got}}) {
        optimizer->zero_grad();
        (*m)->forward(numbers({4, 8})).pow(2).sum().backward();
      }
      evaluate();
      want.step();
      got.step();
      evaluate();
    }
    expect_same(weights_of(*sharded), weights_of(*plain));
  }
}

TEST(Modules, ShardingInInferenceMode) {
  auto make = [] { return std::make_shared<torch::nn::LinearImpl>(4, 3); };
  auto plain = seeded(make), model = seeded(make);
  std::shared_ptr<ShardedModule> sharded;
  {
    c10::InferenceMode inference;
    sharded = shard_strictly(*model);
    EXPECT_TRUE(torch::equal(model->forward(numbers({2, 4})), plain->forward(numbers({2, 4}))));
  }
  model->forward(numbers({2, 4})).pow(2).sum().backward();
  plain->forward(numbers({2, 4})).pow(2).sum().backward();
  expect_same(gradients_of(*sharded), gradients_of(*plain));
}

TEST(Modules, Bf16ComputeEqualsAnExplicitlyBf16Module) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      embed = register_module("embed", torch::nn::Embedding(20, 8));
      auto options = torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0);
      layer = register_module("layer", torch::nn::TransformerEncoderLayer(options));
      head = register_module("head", torch::nn::Linear(8, 20));
    }
    torch::Tensor loss() {
      torch::Tensor logits = head(layer(embed(ids()))).flatten(0, 1).to(torch::kFloat);
      return torch::nn::functional::cross_entropy(logits, ids().flatten());
    }
    torch::nn::Embedding embed{nullptr};
    torch::nn::TransformerEncoderLayer layer{nullptr};
    torch::nn::Linear head{nullptr};
  };
  auto make = [] { return std::make_shared<NetImpl>(); };
  auto plain = seeded(make), model = seeded(make);
  auto originals = weights_of(*plain);
  plain->to(torch::kBFloat16);
  Options options = testing::one_rank_options();
  options.param_dtype = torch::kBFloat16;
  auto sharded = shard_strictly(*model, options);
  torch::Tensor want = plain->loss(), got = model->loss();
  want.backward();
  got.backward();
  EXPECT_TRUE(same_bits(got.detach(), want.detach()));
  auto gradients = gradients_of(*plain);
  for (auto& [name, gradient] : gradients) gradient = gradient.to(torch::kFloat);
  expect_same(gradients_of(*sharded), gradients);
  expect_same(weights_of(*sharded), originals);  // the shards keep fp32
}

TEST(Modules, Fp32ReductionAddsBf16GradientsExactly) {
  auto model = seeded([] { return std::make_shared<torch::nn::LinearImpl>(3, 1); });
  Options options = testing::one_rank_options();
  options.param_dtype = torch::kBFloat16;
  options.reduce_dtype = torch::kFloat;
  auto sharded = shard_strictly(*model, options);
  for (int i = 0; i < 3; ++i) {
    model->forward(torch::full({1, 3}, i == 0 ? 256.0 : 1.0, torch::kBFloat16)).sum().backward();
  }
  // The intermediate sums of 256 + 1 + 1 are not rounded to bf16.
  EXPECT_TRUE(torch::equal(gradients_of(*sharded).at("weight"), torch::full({1, 3}, 258.0)));
}

TEST(Modules, MixedDtypesAndFrozenParametersInOneModule) {
  struct MixedImpl : torch::nn::Module {
    MixedImpl() {
      a = register_parameter("a", torch::ones({3}, torch::kDouble));
      b = register_parameter("b", torch::ones({3}) * 2);
      frozen = register_parameter("frozen", torch::ones({3}) * 3, false);
      index = register_parameter("index", torch::tensor({2, 0, 1}), false);
      mask = register_parameter("mask", torch::tensor({true, false, true}), false);
    }
    torch::Tensor a, b, frozen, index, mask;
  };
  auto make = [] { return std::make_shared<MixedImpl>(); };
  auto plain = make(), model = make();
  auto sharded = shard_strictly(*model);
  auto loss = [](MixedImpl& m) {
    return (m.a.index_select(0, m.index) * m.b * m.frozen * m.mask).pow(2).sum() + m.b.index({m.mask}).sum();
  };
  for (MixedImpl* m : {plain.get(), model.get()}) loss(*m).backward();
  auto gradients = gradients_of(*sharded);
  expect_same(gradients, gradients_of(*plain));
  EXPECT_EQ(sharded->engine().units().front()->flat_parameters().size(), 5);
  expect_same(weights_of(*sharded), weights_of(*plain));
}

TEST(Modules, ZeroDimAndZeroSizeParameters) {
  struct TinyImpl : torch::nn::Module {
    TinyImpl() {
      a = register_parameter("a", torch::tensor(2.0f));
      z = register_parameter("z", torch::empty({0, 4}));
      w = register_parameter("w", numbers({3}));
    }
    torch::Tensor a, z, w;
  };
  expect_trains_alike([] { return std::make_shared<TinyImpl>(); },
                      [](auto& m) { return m->a * m->w.pow(2).sum() + m->z.sum(); });
}

}  // namespace
}  // namespace fsdp
