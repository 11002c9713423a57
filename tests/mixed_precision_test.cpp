// Mixed precision: which values are rounded where, compared with rounding by hand in one process; memory; casts.
#include <ATen/record_function.h>

#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "optim/fused_adamw.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/over_gloo.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"
#include "torch_seams/derived_key.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::expect_error;
using testing::expect_same;
using testing::make_tiny_lm;
using testing::numbers;
using testing::one_rank;
using testing::run_ranks;
using testing::TinyLM;
using testing::weights_of;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Tensors = std::map<std::string, torch::Tensor>;

// ---------------------------------------------------------------- against rounding by hand

struct Case {
  int world_size;
  ShardingStrategy strategy;
  at::ScalarType compute, reduce;
  bool use_orig_params;

  int factor() const {
    return strategy == kNoShard ? 1 : is_hybrid(strategy) ? std::max(world_size / 2, 1) : world_size;
  }
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, "ranks_", c10::toString(c.compute), "_",
                  c10::toString(c.reduce), c.use_orig_params ? "_orig" : "_flat");
}

// Returns the sum of the parts in rank order, in fp32, times `scale`.
torch::Tensor mean_of(const std::vector<torch::Tensor>& parts, float scale) {
  torch::Tensor sum = parts[0].to(at::kFloat);
  for (size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i].to(at::kFloat);
  return sum * scale;
}

// Returns the gradient that reaches the shards: the mean in the shard group; if there are replicas, rounded to the
// reduce dtype, then the mean over replicas, which travels in the reduce dtype.
torch::Tensor reduced(const Case& c, const std::vector<torch::Tensor>& gradients) {
  const int F = c.factor(), replicas = c.world_size / F;
  std::vector<torch::Tensor> groups;
  for (int k = 0; k < replicas; ++k) {
    std::vector<torch::Tensor> parts;
    for (int rank = k * F; rank < (k + 1) * F; ++rank) parts.push_back(gradients[rank].to(c.reduce));
    groups.push_back(F == 1 ? parts[0] : mean_of(parts, 1.0f / F));
  }
  if (replicas == 1) return groups[0].to(at::kFloat);
  for (torch::Tensor& group : groups) group = group.to(c.reduce);
  return mean_of(groups, 1.0f / replicas).to(c.reduce).to(at::kFloat);
}

// Trains fp32 masters, with forward and backward on a copy in the compute dtype.
Tensors train_by_hand(const Case& c, int steps) {
  TinyLM master = make_tiny_lm({});
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensors> gradients;
    for (int rank = 0; rank < c.world_size; ++rank) {
      TinyLM low = make_tiny_lm({}, c.compute);
      torch::NoGradGuard no_grad;
      for (size_t i = 0; i < low->parameters().size(); ++i) low->parameters()[i].copy_(master->parameters()[i]);
      torch::AutoGradMode grad(true);
      low->loss(batch_of(rank, step)).backward();
      gradients.push_back(testing::gradients_of(*low));
    }
    torch::NoGradGuard no_grad;
    for (auto& entry : master->named_parameters()) {
      std::vector<torch::Tensor> parts;
      for (const Tensors& of_rank : gradients) parts.push_back(of_rank.at(entry.key()));
      entry.value().sub_(reduced(c, parts), 1.0 / 16);
    }
  }
  return weights_of(*master);
}

Options options_for(const Ranks& world, const Case& c) {
  Options options = testing::block_options(world, c.strategy, c.use_orig_params);
  options.param_dtype = c.compute;
  options.reduce_dtype = c.reduce;
  return options;
}

class MixedPrecision : public ::testing::TestWithParam<Case> {};

TEST_P(MixedPrecision, RoundsWhereItShould) {
  const Case& c = GetParam();
  constexpr int kSteps = 2;
  Tensors want = train_by_hand(c, kSteps);
  run_ranks(c.world_size, [&](Ranks world) {
    TinyLM model = make_tiny_lm({});
    auto sharded = testing::shard_strictly(*model, options_for(world, c));
    for (int step = 0; step < kSteps; ++step) {
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), step)).backward();
      testing::descend(sharded->parameters());
    }
    expect_same(weights_of(*sharded), want);
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (ShardingStrategy strategy : {kFullShard, kShardGradOp, kNoShard, kHybridShard, kHybridShardZero2}) {
    for (auto [compute, reduce] : {std::pair{at::kBFloat16, at::kBFloat16},
                                   {at::kBFloat16, at::kFloat},
                                   {at::kHalf, at::kHalf},
                                   {at::kHalf, at::kFloat},
                                   {at::kFloat, at::kBFloat16},
                                   {at::kBFloat16, at::kHalf}}) {
      for (int world_size : {1, 2, 4}) {
        cases.push_back({world_size, strategy, compute, reduce, world_size != 2});
      }
    }
    if (!is_hybrid(strategy)) {
      cases.push_back({3, strategy, at::kBFloat16, at::kFloat, false});
    }
    cases.push_back({8, strategy, at::kBFloat16, at::kBFloat16, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, MixedPrecision, ::testing::ValuesIn(all_cases()), case_name);

// ---------------------------------------------------------------- dividing gradients

// Returns the reduced gradient of one parameter with 5 elements. The gradient of each rank is `values`.
torch::Tensor reduced_gradient(const Ranks& world, ShardingStrategy strategy, const torch::Tensor& values) {
  testing::Bag bag(std::vector<torch::Tensor>{torch::ones({5})});
  Options options = options_for(world, {world->size(), strategy, at::kHalf, at::kHalf, true});
  options.auto_wrap_policy = {};
  auto sharded = fully_shard(*bag, options);
  (bag->parameters()[0] * values).sum().backward();
  torch::Tensor whole = torch::zeros({5});
  for (const auto& [name, leaf] : sharded->named_parameters()) {
    const ShardSlice slice = sharded->shard_slices()[0];
    whole.slice(0, slice.begin, slice.end).copy_(leaf.grad());
  }
  // Replicas hold the same part, so the sum over all ranks contains each part once per replica.
  const int64_t replicas = strategy == kNoShard ? world->size() : is_hybrid(strategy) ? 2 : 1;
  world->all_reduce(whole, whole, {1.0 / replicas}, {"whole", 0, Pass::kUser})->wait();
  return whole;
}

// The sum of 40000 over 8 ranks is far above fp16's maximum of 65504, and an eighth of fp16's smallest number is 0.
TEST(DividedGradients, NeitherOverflowNorUnderflowInFp16) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    run_ranks(8, [strategy](Ranks world) {
      torch::Tensor values = torch::tensor({40000.0, 6e-8, -65504.0, 1.0, 0.0}).to(at::kHalf);
      torch::Tensor got = reduced_gradient(world, strategy, values);
      EXPECT_TRUE(torch::equal(got, values.to(at::kFloat))) << to_string(strategy) << got;
    });
  }
}

// ---------------------------------------------------------------- memory, and the one cast

constexpr int64_t kWidth = 12;

torch::nn::Sequential make_chain(int64_t layers) {
  return testing::seeded([&] {
    torch::nn::Sequential chain;
    for (int64_t i = 0; i < layers; ++i) {
      chain->push_back(torch::nn::Linear(kWidth, kWidth * (i % 2 + 1)));
      chain->push_back(torch::nn::Linear(kWidth * (i % 2 + 1), kWidth));
    }
    return chain;
  });
}

// FSDP paper, section 4.4: K_full * psi / F bytes for the shards, and K_low * max psi_i for the gathered parameters.
TEST(Memory, FollowsThePapersFormula) {
  for (auto [low, K_low] : {std::pair{at::kFloat, 4}, {at::kBFloat16, 2}}) {
    testing::run_ranks_over_gloo(3, [low = low, K_low = K_low](Ranks world) {
      auto chain = make_chain(4);
      Options options;
      options.communicator = world;
      options.param_dtype = low;
      options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
      auto sharded = fully_shard(*chain, options);
      int64_t psi = 0, largest = 0, shards = 0;  // elements with padding; `shards` in bytes
      for (const auto& unit : sharded->engine().units()) {
        for (const auto& flat : unit->flat_parameters()) {
          psi += flat->layout().padded_numel();
          largest = std::max(largest, flat->layout().padded_numel());
          shards += flat->shard().nbytes();
        }
      }
      chain->forward(torch::ones({2, kWidth})).sum().backward();
      constexpr int64_t K_full = 4;
      EXPECT_EQ(shards, K_full * psi / 3);
      EXPECT_EQ(sharded->diagnostics().stats().peak_gathered_bytes, K_low * largest);
      EXPECT_EQ(sharded->diagnostics().stats().gathered_bytes, 0);
    });
  }
}

struct Copies {
  std::atomic<int> casts = 0;
  std::atomic<int> others = 0;
};
thread_local Copies* observed = nullptr;

std::unique_ptr<at::ObserverContext> count_copy(const at::RecordFunction& function) {
  if (observed && std::string(function.name()) == "aten::copy_") {
    const auto inputs = function.inputs();
    const bool cast = inputs[0].toTensor().scalar_type() != inputs[1].toTensor().scalar_type();
    ++(cast ? observed->casts : observed->others);
  }
  return nullptr;
}

TEST(Memory, AGatherCastsOnceAndCopiesNothingElse) {
  auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&count_copy).needsInputs(true));
  testing::run_ranks(2, [](Ranks world) {
    auto chain = make_chain(2);
    Options options;
    options.communicator = world;
    options.param_dtype = at::kBFloat16;
    options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
    auto sharded = fully_shard(*chain, options);
    sharded->diagnostics().verify_sharding();
    Copies copies;
    observed = &copies;
    sharded->unshard();
    observed = nullptr;
    EXPECT_EQ(copies.casts, 4);
    EXPECT_EQ(copies.others, 0);
  });
  at::removeCallback(handle);
}

// ---------------------------------------------------------------- casts of inputs

Options low_on_one_rank(at::ScalarType dtype = at::kBFloat16) {
  Options options;
  options.communicator = one_rank();
  options.param_dtype = dtype;
  return options;
}

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

// ---------------------------------------------------------------- classes in full precision

TEST(FullPrecisionClasses, KeepTheirParametersInTheShardsDtype) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    Options options = options_for(world, {2, kFullShard, at::kBFloat16, at::kBFloat16, true});
    options.full_precision_classes = {"LayerNorm"};
    auto sharded = testing::shard_strictly(*model, options);
    for (const auto& entry : model->named_parameters()) {
      bool norm = entry.key().find("norm") != std::string::npos;
      EXPECT_EQ(entry.value().scalar_type(), norm ? at::kFloat : at::kBFloat16) << entry.key();
    }
    EXPECT_EQ(sharded->engine().units().front()->flat_parameters().size(), 2u);
    torch::Tensor loss = model->loss(batch_of(world->rank(), 0));
    EXPECT_EQ(loss.scalar_type(), at::kBFloat16);
    loss.backward();
    EXPECT_TRUE(std::isfinite(sharded->grad_norm().item<double>()));
  });
}

// Statistics are computed in fp32, and the result has the dtype of the input, as in FSDP1.
TEST(FullPrecisionClasses, NormalisationsReturnTheInputsDtype) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({6}));
  torch::NoGradGuard no_grad;
  norm->weight.copy_(1 + numbers({6}) / 1000);
  torch::Tensor weight = norm->weight.clone(), bias = norm->bias.clone();
  Options options = low_on_one_rank();
  options.full_precision_classes = {"LayerNorm"};
  fully_shard(*norm, options);
  torch::Tensor x = numbers({2, 6}).to(at::kBFloat16);
  torch::Tensor want = at::layer_norm(x.to(at::kFloat), {6}, weight, bias).to(at::kBFloat16);
  EXPECT_TRUE(testing::same_bits(norm->forward(x), want));
}

// ---------------------------------------------------------------- buffers

struct WithBuffersImpl : torch::nn::Module {
  WithBuffersImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    linear = register_module("linear", torch::nn::Linear(3, 3));
    scale = register_buffer("scale", torch::full({3}, 1.0 / 3));
    count = register_buffer("count", torch::ones({1}, at::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)) * scale; }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::Tensor scale, count;
};
TORCH_MODULE(WithBuffers);

TEST(BufferDtype, LeavesOutFullPrecisionClasses) {
  WithBuffers model;
  Options options = low_on_one_rank();
  options.buffer_dtype = at::kHalf;
  options.full_precision_classes = {"BatchNorm1d"};
  auto sharded = fully_shard(*model, options);
  EXPECT_EQ(model->scale.scalar_type(), at::kHalf);
  EXPECT_EQ(model->count.scalar_type(), at::kLong);
  EXPECT_EQ(model->norm->running_mean.scalar_type(), at::kFloat);
  EXPECT_EQ(model->norm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(model->linear->weight.scalar_type(), at::kBFloat16);
  sharded->set_full_precision(true);
  EXPECT_EQ(model->scale.scalar_type(), at::kFloat);
  sharded->set_full_precision(false);
  EXPECT_EQ(model->scale.scalar_type(), at::kHalf);
}

TEST(BufferDtype, OfInnerUnitsIsTheirOwn) {
  WithBuffers model;
  Options inner = low_on_one_rank();
  fully_shard(*model->norm, inner);
  Options outer = inner;
  outer.buffer_dtype = at::kHalf;
  fully_shard(*model, outer);
  EXPECT_EQ(model->scale.scalar_type(), at::kHalf);
  EXPECT_EQ(model->norm->running_mean.scalar_type(), at::kFloat);
}

// ---------------------------------------------------------------- full precision on request

TEST(FullPrecision, EvaluatesAsIfNothingWereCast) {
  run_ranks(2, [](Ranks world) {
    TinyLM plain = make_tiny_lm({});
    TinyLM model = make_tiny_lm({});
    auto sharded =
        testing::shard_strictly(*model, options_for(world, {2, kFullShard, at::kBFloat16, at::kFloat, true}));
    auto train = [&](int step) {
      sharded->zero_grad();
      model->loss(batch_of(world->rank(), step)).backward();
      torch::Tensor norm = sharded->grad_norm();
      return norm.item<double>();
    };
    const double before = train(0);
    torch::Tensor stale = model->loss(batch_of(0, 1));
    sharded->set_full_precision(true);
    {
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal(model->forward(batch_of(0, 0)), plain->forward(batch_of(0, 0))));
    }
    expect_error([&] { stale.backward(); }, {"modified by an inplace operation"});
    // Gradients are also computed and reduced in fp32.
    const double full = train(0);
    plain->zero_grad();
    ((plain->loss(batch_of(0, 0)) + plain->loss(batch_of(1, 0))) / 2).backward();
    EXPECT_NEAR(full, torch::nn::utils::clip_grad_norm_(plain->parameters(), 1e9), 1e-5);
    EXPECT_NE(full, before);
    sharded->set_full_precision(false);
    EXPECT_EQ(model->embed->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(train(0), before);
    testing::descend(sharded->parameters());
    train(1);
  });
}

TEST(FullPrecision, FollowsEvalWhereTheWrapperIsAskedTo) {
  FullyShardedDataParallel<torch::nn::Linear> model(torch::nn::Linear(3, 2), low_on_one_rank(),
                                                    {.full_precision_in_eval = true});
  torch::Tensor x = torch::ones({1, 3});
  EXPECT_EQ(model.forward(x).scalar_type(), at::kBFloat16);
  model.eval();
  EXPECT_EQ(model.forward(x).scalar_type(), at::kFloat);
  model.train();
  EXPECT_EQ(model.forward(x).scalar_type(), at::kBFloat16);
}

TEST(FullPrecision, CannotBeSwitchedInTheMiddle) {
  torch::nn::Linear linear(3, 2);
  auto sharded = fully_shard(*linear, low_on_one_rank());
  sharded->pin({}, [&] { expect_error([&] { sharded->set_full_precision(true); }, {"full precision", "in use"}); });
  auto no_sync = sharded->no_sync();
  linear->forward(torch::ones({1, 3})).sum().backward();
  expect_error([&] { sharded->set_full_precision(true); }, {"accumulated without communication"});
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

// ---------------------------------------------------------------- gradients in low precision

TEST(LowPrecisionGradients, ReachTheOptimizerAsTheyWereReduced) {
  for (ShardingStrategy strategy : {kFullShard, kNoShard, kHybridShard}) {
    for (bool orig : {true, false}) {
      run_ranks(4, [&](Ranks world) {
        auto train = [&](bool keep) {
          TinyLM model = make_tiny_lm({});
          Options options = options_for(world, {4, strategy, at::kBFloat16, at::kBFloat16, orig});
          options.keep_low_precision_grads = keep;
          auto sharded = fully_shard(*model, options);
          optim::FusedAdamW optimizer(sharded->parameters(), {.learning_rate = 0.01});
          for (int step = 0; step < 3; ++step) {
            sharded->zero_grad();
            model->loss(batch_of(world->rank(), step)).backward();
            for (const torch::Tensor& leaf : sharded->parameters()) {
              if (leaf.grad().defined()) {
                EXPECT_EQ(leaf.grad().scalar_type(), keep ? at::kBFloat16 : at::kFloat);
                leaf.mutable_grad() = leaf.grad().to(at::kBFloat16);  // the reduce-scatter's sum is rounded for both
              }
            }
            optimizer.step();
          }
          return weights_of(*sharded);
        };
        expect_same(train(true), train(false));
      });
    }
  }
}

}  // namespace
}  // namespace fsdp
