// Tests rule R4: writes to parameters are detected from the operator schema. Outside with_full_params each goes to the
// shards at once (write_through_test has several ranks); inside it, written elements are copied back at its end. Writes
// to shards are seen by the next forward, and refused between forward and backward.
#include <limits>

#include "engine/engine.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::expect_error;
using testing::expect_same;
using testing::shard_strictly;
using testing::weights_of;

torch::nn::Linear make_linear() {
  return testing::seeded([] { return torch::nn::Linear(8, 8); });
}

struct Write {
  const char* name;
  void (*apply)(torch::nn::LinearImpl& linear);
};

void no_grad_in_place(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  linear.weight.mul_(2);
  linear.bias.zero_();
}
void data_in_place(torch::nn::LinearImpl& linear) { linear.weight.data().mul_(2); }
void view_of_detached(torch::nn::LinearImpl& linear) { linear.weight.detach().view({-1}).narrow(0, 3, 6).fill_(1); }
void init(torch::nn::LinearImpl& linear) {
  torch::manual_seed(1);
  torch::nn::init::kaiming_uniform_(linear.weight);
}
void out_argument(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  torch::mul_out(linear.weight, torch::ones({8, 8}), torch::full({8, 8}, 3));
}
void foreach_list(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  torch::_foreach_mul_({linear.weight, linear.bias}, 2.0);
}
void index_put(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  linear.weight.index_put_({torch::tensor({0, 1})}, torch::full({}, 0.5));
  linear.weight.copy_(linear.weight * 2);
}
void indexing(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  linear.weight[2][3] = 7;
  linear.weight.index_put_({torch::indexing::Slice(1, 3), 4}, 5);
}
void zero(torch::nn::LinearImpl& linear) { linear.weight.data().zero_(); }
void foreach_zero(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  torch::_foreach_zero_({linear.weight, linear.bias});
}
void transposed(torch::nn::LinearImpl& linear) {
  torch::NoGradGuard no_grad;
  linear.weight.t().select(0, 2).add_(1);
}

const std::vector<Write> kWrites = {{"no_grad_in_place", no_grad_in_place},
                                    {"data_in_place", data_in_place},
                                    {"view_of_detached", view_of_detached},
                                    {"init", init},
                                    {"out_argument", out_argument},
                                    {"foreach_list", foreach_list},
                                    {"index_put", index_put},
                                    {"indexing", indexing},
                                    {"zero", zero},
                                    {"foreach_zero", foreach_zero},
                                    {"transposed", transposed}};

class ParameterWrite : public ::testing::TestWithParam<Write> {};
INSTANTIATE_TEST_SUITE_P(All, ParameterWrite, ::testing::ValuesIn(kWrites),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ParameterWrite, GoesToTheShardsOutsideTheScope) {
  for (const bool strict : {true, false}) {
    auto plain = make_linear(), linear = make_linear();
    auto sharded = fully_shard(*linear, testing::one_rank_options());
    sharded->engine().gatherer().set_strict(strict);
    for (int round = 0; round < 2; ++round) {
      GetParam().apply(*plain);
      GetParam().apply(*linear);
      const torch::Tensor x = torch::ones({2, 8});
      EXPECT_TRUE(torch::equal(linear->forward(x), plain->forward(x)));
      expect_same(weights_of(*sharded), weights_of(*plain));
    }
  }
}

TEST_P(ParameterWrite, WorksInsideTheScope) {
  auto plain = make_linear(), linear = make_linear();
  auto sharded = shard_strictly(*linear);
  for (int round = 0; round < 2; ++round) {
    GetParam().apply(*plain);
    sharded->with_full_params([&] { GetParam().apply(*linear); });
    torch::Tensor x = torch::ones({2, 8});
    EXPECT_TRUE(torch::equal(linear->forward(x), plain->forward(x)));
    expect_same(weights_of(*sharded), weights_of(*plain));
  }
}

// Does the same without the test mode. With one rank, the shard itself then serves as the unsharded buffer.
TEST_P(ParameterWrite, WorksInsideTheScopeWhereShardsServe) {
  auto plain = make_linear(), linear = make_linear();
  auto sharded = fully_shard(*linear, testing::one_rank_options());
  GetParam().apply(*plain);
  sharded->with_full_params([&] { GetParam().apply(*linear); });
  expect_same(weights_of(*sharded), weights_of(*plain));
}

TEST_P(ParameterWrite, IsForgottenWithoutWriteback) {
  for (bool strict : {true, false}) {
    auto plain = make_linear(), linear = make_linear();
    auto sharded = fully_shard(*linear, testing::one_rank_options());
    sharded->engine().gatherer().set_strict(strict);
    sharded->with_full_params([&] { GetParam().apply(*linear); }, /*writeback=*/false);
    expect_same(weights_of(*sharded), weights_of(*plain));
    torch::Tensor x = torch::ones({2, 8});
    EXPECT_TRUE(torch::equal(linear->forward(x), plain->forward(x)));
  }
}

TEST_P(ParameterWrite, IsForgottenWhenTheScopeThrows) {
  for (bool strict : {true, false}) {
    auto plain = make_linear(), linear = make_linear();
    auto sharded = fully_shard(*linear, testing::one_rank_options());
    sharded->engine().gatherer().set_strict(strict);
    auto body = [&] {
      GetParam().apply(*linear);
      throw std::runtime_error("thrown inside");
    };
    expect_error([&] { sharded->with_full_params(body); }, {"thrown inside"});
    expect_same(weights_of(*sharded), weights_of(*plain));
    torch::Tensor x = torch::ones({2, 8});
    EXPECT_TRUE(torch::equal(linear->forward(x), plain->forward(x)));
  }
}

TEST(ParameterWrites, EmbeddingWithMaxNormWritesInForward) {
  auto make = [] {
    return testing::seeded([] { return torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).max_norm(0.5)); });
  };
  torch::nn::Embedding plain = make(), embedding = make();
  torch::Tensor ids = torch::tensor({1, 3, 3});
  auto sharded = shard_strictly(*embedding);
  EXPECT_TRUE(torch::equal(embedding(ids).detach(), plain(ids).detach()));
  expect_same(weights_of(*sharded), weights_of(*plain));
  torch::Tensor got;
  sharded->with_full_params([&] { got = embedding(torch::tensor({5})).detach().clone(); });
  EXPECT_TRUE(torch::equal(got, plain(torch::tensor({5})).detach()));
  expect_same(weights_of(*sharded), weights_of(*plain));
}

TEST(ParameterWrites, InPlaceOnALeafRaisesAsPlainInsideTheScope) {
  auto linear = make_linear();
  auto sharded = shard_strictly(*linear);
  sharded->with_full_params([&] { expect_error([&] { linear->weight.mul_(2); }, {"leaf"}); });
}

class WritesInLowPrecision : public ::testing::Test {
 protected:
  void SetUp() override {
    linear = make_linear();
    Options options = testing::one_rank_options();
    options.param_dtype = at::kBFloat16;
    original = {{"weight", linear->weight.detach().clone()}, {"bias", linear->bias.detach().clone()}};
    sharded = shard_strictly(*linear, options);
  }
  torch::nn::Linear linear{nullptr};
  std::map<std::string, torch::Tensor> original;
  std::shared_ptr<ShardedModule> sharded;
};

// A write-back through bf16 would round every element, but only written elements may change.
TEST_F(WritesInLowPrecision, UntouchedElementsKeepTheirBits) {
  ASSERT_FALSE(torch::equal(original["weight"].to(at::kBFloat16).to(at::kFloat), original["weight"]));
  sharded->with_full_params([&] {
    torch::NoGradGuard no_grad;
    EXPECT_EQ(linear->weight.scalar_type(), at::kBFloat16);
    linear->bias.zero_();
    linear->weight[2][3] = 7.5;
  });
  original["bias"].zero_();
  original["weight"][2][3] = 7.5;
  expect_same(weights_of(*sharded), original);
}

TEST_F(WritesInLowPrecision, ReadingChangesNothing) {
  sharded->with_full_params([&] { (void)linear->weight.sum(); });
  expect_same(weights_of(*sharded), original);
}

TEST_F(WritesInLowPrecision, SpecialValuesAreWritten) {
  float inf = std::numeric_limits<float>::infinity();
  sharded->with_full_params([&] {
    torch::NoGradGuard no_grad;
    linear->weight[0][0] = NAN;
    linear->weight[0][1] = inf;
    linear->weight[0][2] = 0.0;
  });
  original["weight"][0][0] = NAN;
  original["weight"][0][1] = inf;
  original["weight"][0][2] = 0.0;
  expect_same(weights_of(*sharded), original);
  sharded->with_full_params([&] {
    torch::NoGradGuard no_grad;
    linear->weight[0][0] = 1;
    linear->weight[0][2] = -0.0;
  });
  auto weights = weights_of(*sharded);
  EXPECT_EQ(weights["weight"][0][0].item<float>(), 1);
  EXPECT_TRUE(std::signbit(weights["weight"][0][2].item<float>()));
}

// ---- shards written

struct Case {
  const char* name;
  void (*write)(ShardedModule& sharded);
};

void write_leaf(ShardedModule& sharded) {
  torch::NoGradGuard no_grad;
  for (torch::Tensor leaf : sharded.parameters()) leaf.mul_(2);
}
void write_leaf_data(ShardedModule& sharded) {
  for (const torch::Tensor& leaf : sharded.parameters()) leaf.data().mul_(2);
}
void write_slices(ShardedModule& sharded) {
  torch::NoGradGuard no_grad;
  for (ShardSlice& slice : sharded.shard_slices()) slice.data.mul_(2);
}
void write_in_inference(ShardedModule& sharded) {
  c10::InferenceMode inference;
  for (ShardSlice& slice : sharded.shard_slices()) slice.data.mul_(2);
}
template <typename Optimizer>
void step(ShardedModule& sharded) {
  for (torch::Tensor leaf : sharded.parameters()) leaf.mutable_grad() = torch::ones_like(leaf);
  Optimizer optimizer(sharded.parameters(), 0.25);
  optimizer.step();
}

class ShardWrite : public ::testing::TestWithParam<Case> {
 protected:
  // Does not use the strictest mode: the engine may keep units gathered, and bf16 prevents the shard from serving as
  // the unsharded buffer.
  void SetUp() override {
    linear = make_linear();
    Options options = testing::one_rank_options();
    options.param_dtype = at::kBFloat16;
    sharded = fully_shard(*linear, options);
  }
  torch::Tensor forward() { return linear->forward(x).pow(2).sum(); }
  void expect_current_weights(const torch::Tensor& loss) {
    auto weights = weights_of(*sharded);
    torch::Tensor y = torch::linear(x, weights["weight"].to(at::kBFloat16), weights["bias"].to(at::kBFloat16));
    EXPECT_TRUE(torch::equal(loss.detach(), y.pow(2).sum()));
  }
  torch::Tensor x = torch::ones({2, 8}, at::kBFloat16).set_requires_grad(true);
  torch::nn::Linear linear{nullptr};
  std::shared_ptr<ShardedModule> sharded;
};
INSTANTIATE_TEST_SUITE_P(All, ShardWrite,
                         ::testing::Values(Case{"leaf", write_leaf}, Case{"leaf_data", write_leaf_data},
                                           Case{"slices", write_slices}, Case{"inference", write_in_inference},
                                           Case{"SGD", step<torch::optim::SGD>}, Case{"Adam", step<torch::optim::Adam>},
                                           Case{"AdamW", step<torch::optim::AdamW>},
                                           Case{"RMSprop", step<torch::optim::RMSprop>},
                                           Case{"Adagrad", step<torch::optim::Adagrad>}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ShardWrite, IsSeenByTheNextForward) {
  torch::NoGradGuard no_grad;
  expect_current_weights(forward());
  GetParam().write(*sharded);
  expect_current_weights(forward());
}

TEST_P(ShardWrite, IsSeenByTheNextForwardInInferenceMode) {
  torch::NoGradGuard no_grad;
  {
    c10::InferenceMode inference;
    (void)forward();
  }
  GetParam().write(*sharded);
  expect_current_weights(forward());
}

TEST_P(ShardWrite, BetweenForwardAndBackwardRaises) {
  torch::Tensor loss = forward();
  GetParam().write(*sharded);
  expect_error([&] { loss.backward(); }, {"unit 'root'", "written between forward and backward"});
  sharded->zero_grad();
  forward().backward();  // the next step is a clean one
  sharded->reshard();
  expect_current_weights(forward());
}

TEST_P(ShardWrite, AnOlderForwardRaises) {
  torch::Tensor older = forward();
  GetParam().write(*sharded);
  torch::Tensor newer = forward();
  expect_error([&] { older.backward(); }, {"modified by an inplace operation"});
  sharded->zero_grad();
  newer.backward();
}

TEST_P(ShardWrite, BetweenTwoBackwardsRaises) {
  torch::Tensor loss = forward();
  loss.backward({}, /*retain_graph=*/true);
  GetParam().write(*sharded);
  expect_error([&] { loss.backward(); }, {"written between forward and backward"});
}

TEST(ShardWrites, WithFullParamsInvalidatesSavedValues) {
  auto linear = make_linear();
  auto sharded = shard_strictly(*linear);
  torch::Tensor x = torch::ones({2, 8}).set_requires_grad(true);
  torch::Tensor loss = linear(x).pow(2).sum();
  sharded->with_full_params([&] { linear->weight.data().mul_(2); });
  expect_error([&] { loss.backward(); }, {"modified by an inplace operation"});
}

// The write-back would undo an optimizer step that is taken inside the scope.
TEST(ShardWrites, AStepInsideWithFullParamsRaises) {
  auto linear = make_linear();
  auto sharded = shard_strictly(*linear);
  linear(torch::ones({2, 8})).sum().backward();
  torch::optim::Adam optimizer(sharded->parameters(), 0.1);
  expect_error([&] { sharded->with_full_params([&] { optimizer.step(); }); }, {"unit 'root'", "with_full_params"});
}

}  // namespace
}  // namespace fsdp
