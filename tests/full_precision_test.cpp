// Mixed precision: what stays in full precision, by class or on request, and the dtype of buffers.
#include "engine/engine.h"
#include "fsdp/fsdp.h"
#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::batch_of;
using testing::expect_error;
using testing::low_on_one_rank;
using testing::make_tiny_lm;
using testing::numbers;
using testing::run_ranks;
using testing::TinyLM;

using Ranks = std::shared_ptr<Communicator>;

Options options_for(const Ranks& world, at::ScalarType compute, at::ScalarType reduce) {
  Options options = testing::block_options(world);
  options.param_dtype = compute;
  options.reduce_dtype = reduce;
  return options;
}

// ---------------------------------------------------------------- classes in full precision

TEST(FullPrecisionClasses, KeepTheirParametersInTheShardsDtype) {
  run_ranks(2, [](Ranks world) {
    TinyLM model = make_tiny_lm({});
    Options options = options_for(world, at::kBFloat16, at::kBFloat16);
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
    auto sharded = testing::shard_strictly(*model, options_for(world, at::kBFloat16, at::kFloat));
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

}  // namespace
}  // namespace fsdp
