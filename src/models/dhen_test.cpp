// DHEN: sizes, formulas compared with plain ones, FLOPs, errors, and learning.
#include "models/dhen.h"

#include <nlohmann/json.hpp>

#include "models/dhen_interactions.h"
#include "models/registry.h"
#include "models/testing/operator_calls.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"

namespace fsdp::models::dhen_test {
namespace {

using fsdp::testing::error_of;
using nlohmann::json;
using ::testing::HasSubstr;

json with_key(const std::string& key, const json& value) {
  json config = small_dhen();
  config[key] = value;
  return config;
}

Dhen made(const json& json, at::TensorOptions options = at::kDouble) {
  const DhenConfig config = parse_dhen_config(json);
  Dhen model(config, WholeEmbedding(config.tables(), options).ptr(), options);
  if (!options.device().is_meta()) {
    torch::manual_seed(3);
    model->initialize();
  }
  return model;
}

at::Tensor ids(int64_t batch) {
  return (torch::arange(batch * 3).view({batch, 3}) * 5).remainder(torch::tensor({4, 7, 2}));
}

std::shared_ptr<Interaction> interaction(const char* name, const DhenConfig& config, int64_t inputs) {
  auto module = make_interaction(name, config, inputs, at::kDouble);
  torch::manual_seed(5);
  initialize_parameters(*module, 0.5);
  return module;
}

at::Tensor parameter(torch::nn::Module& module, const std::string& name) {
  return module.named_parameters()[name].detach();
}

// Applies the formula to one sample x [m, d] at a time.
at::Tensor each(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& formula) {
  std::vector<at::Tensor> samples;
  for (const at::Tensor& sample : x.unbind()) samples.push_back(formula(sample));
  return torch::stack(samples);
}

class Interactions : public ::testing::Test {
 protected:
  void expect(const char* name, const std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)>& formula) {
    const auto module = interaction(name, config_, 4);
    const torch::NoGradGuard no_grad;
    const auto result = module->forward(x_);
    EXPECT_EQ(result.sizes().vec(), (std::vector<int64_t>{3, 2, 8}));
    EXPECT_TRUE(torch::allclose(result, each(x_, [&](const at::Tensor& x) { return formula(*module, x); })));
  }

  DhenConfig config_ = parse_dhen_config(small_dhen());
  at::Tensor x_ = torch::arange(3 * 4 * 8).to(at::kDouble).view({3, 4, 8}).sin();
};

TEST_F(Interactions, Linear) {
  expect("linear", [](auto& module, const at::Tensor& x) { return parameter(module, "mix.mix.weight").matmul(x); });
}

TEST_F(Interactions, Cross) {
  expect("cross", [](auto& module, const at::Tensor& x) {
    const auto flat = x.flatten();
    const auto cross = parameter(module, "up.weight").matmul(parameter(module, "down.weight").matmul(flat));
    const auto crossed = flat * (cross + parameter(module, "up.bias")) + flat;
    return parameter(module, "mix.mix.weight").matmul(crossed.view({4, 8}));
  });
}

TEST_F(Interactions, DotProduct) {
  expect("dot_product", [](auto& module, const at::Tensor& x) {
    std::vector<at::Tensor> products;
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = i + 1; j < 4; ++j) products.push_back(x[i].dot(x[j]));
    }
    const auto flat = parameter(module, "linear.weight").matmul(torch::stack(products));
    return (flat + parameter(module, "linear.bias")).view({2, 8});
  });
}

TEST_F(Interactions, Mlp) {
  expect("mlp", [](auto& module, const at::Tensor& x) {
    const auto hidden = parameter(module, "layers.layers.0.weight").matmul(x.flatten());
    const auto active = (hidden + parameter(module, "layers.layers.0.bias")).relu();
    const auto output = parameter(module, "layers.layers.1.weight").matmul(active);
    return (output + parameter(module, "layers.layers.1.bias")).view({2, 8});
  });
}

TEST_F(Interactions, Attention) {
  expect("attention", [](auto& module, const at::Tensor& x) {
    const auto qkv = torch::matmul(x, parameter(module, "qkv.weight").t()) + parameter(module, "qkv.bias");
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < 2; ++head) {
      const auto part = [&](int64_t which) { return qkv.narrow(1, which * 8 + head * 4, 4); };
      heads.push_back((part(0).matmul(part(1).t()) / 2.0).softmax(-1).matmul(part(2)));
    }
    const auto attended =
        torch::cat(heads, 1).matmul(parameter(module, "proj.weight").t()) + parameter(module, "proj.bias");
    return parameter(module, "mix.mix.weight").matmul(attended);
  });
}

// The first layer makes 10 embeddings from 4, so its shortcut is a map; the shortcut of the second layer is the
// identity.
TEST(Dhen, LayersAddTheShortcutAndNormalise) {
  const auto model = made(small_dhen());
  EXPECT_TRUE(model->named_parameters().contains("layers.0.shortcut.mix.weight"));
  EXPECT_FALSE(model->named_parameters().contains("layers.1.shortcut.mix.weight"));
  json plain = small_dhen();
  plain["interactions"] = {"linear"};
  const DhenConfig config = parse_dhen_config(plain);
  DhenLayer layer(config, 2, at::kDouble);
  initialize_parameters(*layer, 0.0);  // the interaction returns zeros
  const auto x = torch::arange(32).to(at::kDouble).view({2, 2, 8}).cos();
  const auto normal = (x - x.mean(-1, true)) / (x.var(-1, false, true) + 1e-5).sqrt();
  EXPECT_TRUE(torch::allclose(layer(x), normal));
}

TEST(Dhen, Learns) {
  auto model = made(small_dhen(), at::kFloat);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01));
  const auto numeric = torch::arange(60).to(at::kFloat).view({20, 3}).sin();
  const auto labels = (ids(20).sum(1) % 2).to(at::kLong);
  std::vector<float> losses;
  for (int step = 0; step < 120; ++step) {
    optimizer.zero_grad();
    const auto output = model->forward(numeric, ids(20), labels);
    EXPECT_EQ(output.logits.sizes().vec(), std::vector<int64_t>{20});
    output.loss.backward();
    optimizer.step();
    losses.push_back(output.loss.item<float>());
  }
  EXPECT_NEAR(losses.front(), 0.7, 0.2);
  EXPECT_LT(losses.back(), 0.1);
  for (const auto& item : model->named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
  EXPECT_FALSE(model->forward(numeric, ids(20)).loss.defined());
}

// Counted by hand from the formulas of dhen.h: 6 for each product with a weight, 12 for each pair and number of
// attention.
TEST(Dhen, CountsFlops) {
  json one = small_dhen();
  one["num_hidden_layers"] = 1;
  const double numeric = 3 * 6 + 6 * 8, head = 80 * 9 + 9;
  const double attention = 4 * 8 * 8 * 4 + 4 * 2 * 8, cross = 2 * 32 * 3 + 4 * 2 * 8, dot = 6 * 16, linear = 4 * 2 * 8;
  const double mlp = 32 * 5 + 5 * 16, shortcut = 4 * 10 * 8;
  const double products = numeric + head + attention + cross + dot + linear + mlp + shortcut;
  EXPECT_EQ(made(one)->flops_per_sample(), 6 * products + 12 * 8 * 4 * 4 + 6 * 4 * 4 * 8);
}

// A third of a layer's FLOPs are in forward: 2 of 6 for each product with a weight, 4 of 12 for attention, 2 of 6 for
// dot products.
TEST(Dhen, CountsRecomputedFlops) {
  json one = small_dhen();
  one["num_hidden_layers"] = 1;
  Dhen model = made(one);
  EXPECT_EQ(model->recomputed_flops_per_sample(), 0);
  const double mixes = 3 * 4 * 2 * 8 + 4 * 10 * 8, attention = 4 * 8 * 8 * 4, cross = 2 * 32 * 3, dot = 6 * 16;
  const double linear = 2 * (mixes + attention + cross + dot + 32 * 5 + 5 * 16);
  const double scores = 4 * 8 * 4 * 4, dots = 2 * 4 * 4 * 8;
  model->set_activation_checkpointing(CheckpointPolicy::full());
  EXPECT_EQ(model->recomputed_flops_per_sample(), linear + scores + dots);
  model->set_activation_checkpointing(CheckpointPolicy::selected_operators({"aten::mm", "aten::bmm"}));
  EXPECT_EQ(model->recomputed_flops_per_sample(), linear - 2 * (mixes + cross / 2) + scores);
}

// On the meta device: the numbers of dense and sparse parameters are those of the FSDP paper; none of the 768 billion
// is allocated.
TEST(Dhen, TheOneOfTheFsdpPaperHasItsSizes) {
  const DhenConfig config = parse_dhen_config(dhen_550m());
  EXPECT_NEAR(config.sparse_parameters() / 768e9, 1.0, 0.01);
  const auto options = at::TensorOptions(at::kFloat).device(at::kMeta);
  Dhen model(config, WholeEmbedding(config.tables(), options).ptr(), options);
  EXPECT_NEAR(static_cast<double>(model->dense_parameters()) / 550e6, 1.0, 0.01);
  EXPECT_EQ(static_cast<double>(model->embedding()->parameters()[0].numel()), config.sparse_parameters());
}

TEST(Dhen, InputsThatDoNotFitAreNamed) {
  auto model = made(small_dhen());
  const auto numeric = torch::zeros({2, 3}, at::kDouble);
  const auto error = [&](const at::Tensor& n, const at::Tensor& c, const at::Tensor& l) {
    return error_of([&] { model->forward(n, c, l); });
  };
  EXPECT_THAT(error(torch::zeros({2, 4}, at::kDouble), ids(2), {}), HasSubstr("[batch, 3]"));
  EXPECT_THAT(error(numeric.to(at::kLong), ids(2), {}), HasSubstr("must be floating"));
  EXPECT_THAT(error(numeric, ids(3), {}), HasSubstr("for 2 samples"));
  EXPECT_THAT(error(numeric, ids(2), torch::zeros({2, 1})), HasSubstr("labels of sizes [2, 1] for 2 samples"));
  EXPECT_THAT(error(numeric, torch::tensor({{0, 0, 0}, {0, 9, 0}}), {}), HasSubstr("id 9 of feature 1"));
  EXPECT_THAT(error_of([&] { model->set_embedding(model->embedding()); }), HasSubstr("has an embedding already"));
  EXPECT_THAT(error_of([&] { Dhen(model->config(), at::kDouble)->forward(numeric, ids(2)); }),
              HasSubstr("no embedding tables yet"));
  EXPECT_THAT(error_of([&] {
                Dhen(model->config(), WholeEmbedding(EmbeddingTables{{4}, 8, 0}, at::kFloat).ptr(), at::kFloat);
              }),
              HasSubstr("does not have the config's tables"));
}

// Recomputed layers, and a model built from the registry without tables, give the same losses and gradients.
TEST(Dhen, IsInTheRegistryAndRecomputes) {
  const auto plain = made(small_dhen());
  const auto other = make_uninitialized<TabularModel>(small_dhen(), at::kDouble);
  EXPECT_EQ(other->parameters().size() + 1, plain->parameters().size());
  other->set_embedding(WholeEmbedding(other->tables(), at::kDouble).ptr());
  torch::manual_seed(3);
  other->initialize();
  other->set_activation_checkpointing(CheckpointPolicy::full());
  const auto numeric = torch::arange(9).to(at::kDouble).view({3, 3}).sin(), labels = torch::tensor({1, 0, 1});
  const auto want = plain.ptr()->forward(numeric, ids(3), labels).loss,
             got = other->forward(numeric, ids(3), labels).loss;
  EXPECT_TRUE(torch::equal(want, got));
  const auto relus_in_backward = [](const at::Tensor& loss) {
    OperatorCalls calls("aten::relu");
    loss.backward();
    return calls.count();
  };
  EXPECT_EQ(relus_in_backward(want), 0);
  EXPECT_EQ(relus_in_backward(got), 2);  // one in each layer, from "mlp"
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value().grad(), other->named_parameters()[item.key()].grad())) << item.key();
  }
  EXPECT_EQ(other->block_class_names(), std::vector<std::string>{"DhenLayer"});
}

// bf16 logits are near 0.7 with three digits; the mean over many samples needs more digits.
TEST(Dhen, LossIsFp32) {
  const auto model = made(small_dhen(), at::kBFloat16);
  const auto output = model.ptr()->forward(torch::zeros({2, 3}, at::kBFloat16), ids(2), torch::tensor({0, 1}));
  EXPECT_EQ(output.logits.scalar_type(), at::kBFloat16);
  EXPECT_EQ(output.loss.scalar_type(), at::kFloat);
}

TEST(DhenConfig, WrongValuesAreNamed) {
  const auto error = [](const json& config) { return error_of([&] { parse_dhen_config(config); }); };
  EXPECT_EQ(error(small_dhen()), "no error");
  EXPECT_THAT(error(with_key("interactions", {"cross", "cross"})), HasSubstr("without repetitions"));
  EXPECT_THAT(error(with_key("interactions", {"convolution"})),
              HasSubstr("attention, cross, dot_product, linear, mlp"));
  EXPECT_THAT(error(with_key("interactions", json::array())), HasSubstr("interactions"));
  EXPECT_THAT(error(with_key("interactions", nullptr)), HasSubstr("interactions"));
  EXPECT_THAT(error(with_key("num_attention_heads", 3)), HasSubstr("a divisor of embedding_width, 8"));
  EXPECT_THAT(error(with_key("mlp_size", nullptr)), HasSubstr("mlp_size"));
  EXPECT_THAT(error(with_key("table_rows", {4, 0})), HasSubstr("table_rows"));
  EXPECT_THAT(error(with_key("dropout", 0.1)), HasSubstr("the keys of a DHEN are num_numeric_features"));
  EXPECT_EQ(error(with_key("numeric_sizes", json::array())), "no error");
}

}  // namespace
}  // namespace fsdp::models::dhen_test
