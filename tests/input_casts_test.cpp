// Mixed precision: casts of inputs at operators, of tensors derived from parameters, and by the wrapper.
#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/training/sharding.h"
#include "torch_seams/derived_key.h"

namespace fsdp {
namespace {

using testing::expect_same;
using testing::low_on_one_rank;
using testing::numbers;

// ---------------------------------------------------------------- casts of inputs

template <typename Make, typename Run>
void expect_same_in_low_precision(Make make, Run run) {
  auto low = testing::seeded(make);
  low->to(at::kBFloat16);
  auto sharded_model = testing::seeded(make);
  auto sharded = testing::shard_strictly(*sharded_model, low_on_one_rank());
  torch::Tensor x = numbers({2, 4, 6});
  torch::Tensor want = run(low, x.to(at::kBFloat16)), got = run(sharded_model, x);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(testing::same_bits(got.detach(), want.detach()));
  want.sum().backward();
  got.sum().backward();
  auto gradients = testing::gradients_of(*low);
  for (auto& [name, gradient] : gradients) gradient = gradient.to(at::kFloat);
  expect_same(testing::gradients_of(*sharded), gradients);
}

// With fp32 activations and bf16 parameters, the result is as if the input had been cast.
TEST(InputCasts, HappenAtOperatorsThatCannotMix) {
  using namespace torch::nn;
  auto plain = [](auto& module, const torch::Tensor& x) { return module->forward(x); };
  expect_same_in_low_precision([] { return Linear(6, 3); }, plain);
  expect_same_in_low_precision([] { return Bilinear(BilinearOptions(6, 6, 3)); },
                               [](auto& module, const torch::Tensor& x) { return module->forward(x, x); });
  expect_same_in_low_precision([] { return Conv1d(Conv1dOptions(4, 3, 2)); }, plain);
  expect_same_in_low_precision([] { return ConvTranspose1d(ConvTranspose1dOptions(4, 3, 2)); }, plain);
  expect_same_in_low_precision([] { return LSTM(6, 3); },
                               [](auto& module, const torch::Tensor& x) { return std::get<0>(module->forward(x)); });
  expect_same_in_low_precision([] { return GRU(6, 3); },
                               [](auto& module, const torch::Tensor& x) { return std::get<0>(module->forward(x)); });
  expect_same_in_low_precision([] { return LayerNorm(LayerNormOptions({6})); }, plain);
  expect_same_in_low_precision([] { return GroupNorm(GroupNormOptions(2, 4)); }, plain);
  expect_same_in_low_precision([] { return PReLU(); }, plain);
}

TEST(InputCasts, PassGradientsToTheInput) {
  torch::nn::Linear linear = testing::seeded([] { return torch::nn::Linear(6, 3); });
  torch::Tensor weight = linear->weight.detach().clone();
  auto sharded = testing::shard_strictly(*linear, low_on_one_rank());
  torch::Tensor x = numbers({2, 6}).requires_grad_();
  linear->forward(x).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(
      torch::equal(x.grad(), weight.to(at::kBFloat16).sum(0, false, at::kBFloat16).to(at::kFloat).expand({2, 6})));
}

TEST(InputCasts, CanBeTurnedOff) {
  torch::nn::Linear linear(6, 3);
  Options options = low_on_one_rank();
  options.cast_forward_inputs = false;
  fully_shard(*linear, options);
  EXPECT_THROW(linear->forward(torch::ones({2, 6})), c10::Error);
  EXPECT_EQ(linear->forward(torch::ones({2, 6}, at::kBFloat16)).scalar_type(), at::kBFloat16);
}

TEST(InputCasts, LeaveIntegersAndPromotionsAlone) {
  torch::nn::Embedding embedding(5, 3);
  fully_shard(*embedding, low_on_one_rank());
  EXPECT_EQ(embedding->forward(torch::tensor({1, 2})).scalar_type(), at::kBFloat16);
  // An elementwise product promotes, as in plain torch.
  EXPECT_EQ((embedding->weight * torch::ones({3})).scalar_type(), at::kFloat);
}

// ---------------------------------------------------------------- tensors derived from parameters

// A linear layer that computes its weight from its parameters before it uses it.
struct DerivingImpl : torch::nn::Module {
  using Derive = std::function<torch::Tensor(const DerivingImpl&)>;
  explicit DerivingImpl(Derive derive) : derive_(std::move(derive)) {
    weight = register_parameter("weight", torch::randn({6, 6}));
    scale = register_parameter("scale", torch::randn({6, 1}));
    a = register_parameter("a", torch::randn({2, 6}));
    b = register_parameter("b", torch::randn({6, 2}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(x, derive_(*this)) + (scale.sum() + a.sum() + b.sum() + weight.sum()) * 0;
  }
  torch::Tensor weight, scale, a, b;

 private:
  Derive derive_;
};

const std::vector<DerivingImpl::Derive> kDerivations = {
    [](const DerivingImpl& m) { return m.weight * 0.5; },
    [](const DerivingImpl& m) { return m.weight * torch::scalar_tensor(0.5); },
    [](const DerivingImpl& m) { return m.weight * (m.scale / m.weight.norm(2, 1, true)); },  // weight norm
    [](const DerivingImpl& m) { return m.weight + 2 * m.b.mm(m.a); },                        // an adapter
    [](const DerivingImpl& m) { return torch::cat({m.weight, m.a}).narrow(0, 1, 5).contiguous(); },
    [](const DerivingImpl& m) { return (m.weight.t() + 1).reshape({2, 18}).reshape({6, 6}).clone(); },
    [](const DerivingImpl& m) { return torch::softmax(m.weight.detach() * 1, -1).t(); }};

TEST(InputCasts, HappenWhereTensorsDerivedFromParametersAreUsed) {
  for (const DerivingImpl::Derive& derive : kDerivations) {
    expect_same_in_low_precision([&] { return std::make_shared<DerivingImpl>(derive); },
                                 [](auto& module, const torch::Tensor& x) { return module->forward(x); });
  }
}

TEST(InputCasts, OfDerivedTensorsPassGradientsToTheInput) {
  auto module = std::make_shared<DerivingImpl>(kDerivations[2]);
  auto sharded = testing::shard_strictly(*module, low_on_one_rank());
  torch::Tensor x = numbers({4, 6}).requires_grad_();
  torch::Tensor low = x.detach().to(at::kBFloat16).requires_grad_();
  module->forward(x).sum().backward();
  module->forward(low).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(torch::equal(x.grad(), low.grad().to(at::kFloat)));
}

TEST(InputCasts, OfDerivedTensorsCanBeTurnedOff) {
  auto module = std::make_shared<DerivingImpl>(kDerivations[0]);
  Options options = low_on_one_rank();
  options.cast_forward_inputs = false;
  fully_shard(*module, options);
  EXPECT_THROW(module->forward(numbers({4, 6})), c10::Error);
}

// Activations do not get the derived key, because it would make operators on them more expensive.
TEST(InputCasts, ActivationsAreNotDerived) {
  torch::nn::Embedding embedding(5, 3);
  torch::nn::Linear linear(3, 3);
  fully_shard(*embedding, low_on_one_rank());
  fully_shard(*linear, low_on_one_rank());
  torch::Tensor x = embedding->forward(torch::tensor({1, 2}));
  EXPECT_FALSE(seams::has_derived_key(x));
  EXPECT_FALSE(seams::has_derived_key(linear->forward(x)));
  EXPECT_FALSE(seams::has_derived_key(x * linear->weight.sum(0)));
  EXPECT_FALSE(seams::has_derived_key(torch::zeros_like(linear->weight)));
  EXPECT_FALSE(seams::has_derived_key((linear->weight * 2).to(at::kFloat)));
  EXPECT_TRUE(seams::has_derived_key(linear->weight * 2));
}

// If operators do not cast their inputs, the wrapper casts at the module's boundary.
TEST(WrapperCasts, ReachProductsWithDerivedTensors) {
  for (const DerivingImpl::Derive& derive : kDerivations) {
    Options options = low_on_one_rank();
    options.cast_forward_inputs = false;
    FullyShardedDataParallel<std::shared_ptr<DerivingImpl>> model(std::make_shared<DerivingImpl>(derive), options);
    torch::Tensor y = model.forward(numbers({4, 6}));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
  }
}

// ---------------------------------------------------------------- the wrapper's casts

struct ManyImpl : torch::nn::Module {
  ManyImpl() { linear = register_module("linear", torch::nn::Linear(3, 2)); }
  using Result = std::tuple<torch::Tensor, std::vector<torch::Tensor>, std::map<std::string, torch::Tensor>,
                            std::optional<torch::Tensor>, int>;
  Result forward(const std::vector<torch::Tensor>& inputs, const std::map<std::string, torch::Tensor>& more,
                 int factor) {
    seen = {inputs[0].scalar_type(), inputs[1].scalar_type(), more.at("x").scalar_type()};
    torch::Tensor y = linear(inputs[0]) * factor;
    return {y, {y, inputs[1]}, {{"y", y}}, y, factor};
  }
  std::vector<at::ScalarType> seen;
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Many);

TEST(WrapperCasts, LookIntoContainers) {
  FullyShardedDataParallel<Many> model(Many(), low_on_one_rank(), {.output_dtype = at::kDouble});
  std::vector<torch::Tensor> inputs = {torch::ones({1, 3}), torch::ones({2}, at::kLong)};
  auto [y, list, map, optional, factor] =
      model.forward(inputs, std::map<std::string, torch::Tensor>{{"x", torch::ones({1})}}, 2);
  EXPECT_EQ(model.module()->seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kLong, at::kBFloat16}));
  EXPECT_EQ(inputs[0].scalar_type(), at::kFloat);  // the caller's own tensor is unchanged
  for (const torch::Tensor& tensor : {y, list[0], map.at("y"), *optional}) EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  EXPECT_EQ(list[1].scalar_type(), at::kLong);
  EXPECT_EQ(factor, 2);
  y.sum().backward();
  EXPECT_GT(model.sharded().grad_norm().item<double>(), 0);
}

TEST(WrapperCasts, CanBeTurnedOff) {
  FullyShardedDataParallel<Many> model(Many(), low_on_one_rank(), {.cast_root_forward_inputs = false});
  auto y = model.forward(std::vector<torch::Tensor>{torch::ones({1, 3}), torch::ones({2})},
                         std::map<std::string, torch::Tensor>{{"x", torch::ones({1})}}, 1);
  EXPECT_EQ(model.module()->seen[0], at::kFloat);
  EXPECT_EQ(std::get<0>(y).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace fsdp
