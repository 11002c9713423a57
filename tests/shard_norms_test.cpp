// Tests norms of whole parameters that are computed from shards, against norms of whole tensors.
#include "fsdp/shard_norms.h"

#include <cmath>

#include "support/nets/tiny_lm.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using testing::Bag;
using testing::expect_error;
using testing::make_tiny_lm;
using testing::numbers;
using testing::run_ranks;
using testing::TinyLM;

struct Case {
  int world_size;
  ShardingStrategy strategy;
  bool use_orig_params;
  at::ScalarType dtype;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return c10::str(to_string(c.strategy), "_", c.world_size, "ranks_", c.use_orig_params ? "orig" : "flat", "_",
                  c10::toString(c.dtype));
}

class ShardNorms : public ::testing::TestWithParam<Case> {
 protected:
  Options options(const std::shared_ptr<Communicator>& communicator) const {
    return testing::block_options(communicator, GetParam().strategy, GetParam().use_orig_params);
  }
  int world_size() const { return GetParam().world_size; }
};

// Returns the mean gradients of all ranks' batches by FQN, computed in one process.
std::map<std::string, torch::Tensor> gradients_alone(TinyLM& model, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) (model->loss(testing::batch_of(rank, 0)) / world_size).backward();
  return testing::gradients_of(*model);
}

double norm(const torch::Tensor& whole, double p) {
  return whole.defined() ? torch::linalg_vector_norm(whole.to(torch::kDouble), p).item<double>() : 0;
}

void expect_norms(const ShardedModule& sharded, const std::vector<double>& got,
                  const std::map<std::string, torch::Tensor>& whole, double p, double tolerance) {
  const auto slices = sharded.shard_slices();
  ASSERT_EQ(got.size(), slices.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = norm(whole.at(slices[i].fqn), p);
    EXPECT_NEAR(got[i], want, tolerance * want) << slices[i].fqn << ", p = " << p;
  }
}

void expect_same_on_all_ranks(Communicator& communicator, const std::vector<double>& norms) {
  const std::string mine(reinterpret_cast<const char*>(norms.data()), norms.size() * sizeof(double));
  for (const std::string& other : communicator.all_gather_bytes(mine, {"norms", 0, Pass::kUser})) {
    EXPECT_TRUE(other == mine);
  }
}

TEST_P(ShardNorms, EqualNormsOfWholeTensors) {
  const double tolerance = GetParam().dtype == torch::kDouble ? 1e-13 : 1e-5;
  TinyLM alone = make_tiny_lm({}, GetParam().dtype);
  const auto gradients = gradients_alone(alone, world_size());
  const auto weights = testing::weights_of(*alone);
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    TinyLM model = make_tiny_lm({}, GetParam().dtype);
    auto sharded = fully_shard(*model, options(communicator));
    model->loss(testing::batch_of(communicator->rank(), 0)).backward();
    for (double p : {2.0, 1.0, 3.5, double(INFINITY)}) {
      const auto of_weights = parameter_norms(*sharded, NormOf::kParameter, p);
      const auto of_gradients = parameter_norms(*sharded, NormOf::kGradient, p);
      expect_norms(*sharded, of_weights, weights, p, tolerance);
      expect_norms(*sharded, of_gradients, gradients, p, tolerance * 10);
      expect_same_on_all_ranks(*communicator, of_weights);
      expect_same_on_all_ranks(*communicator, of_gradients);
    }
    std::vector<torch::Tensor> held;
    for (const torch::Tensor& parameter : model->parameters()) held.push_back(parameter.grad());
    model->zero_grad();  // also seen in the shards
    EXPECT_THAT(parameter_norms(*sharded, NormOf::kGradient), ::testing::Each(0.0));
  });
}

// Tests more ranks than elements, a frozen parameter, an integer parameter, a parameter without elements, and a NaN on
// one rank.
TEST_P(ShardNorms, OddParameters) {
  run_ranks(world_size(), [&](std::shared_ptr<Communicator> communicator) {
    const at::ScalarType dtype = GetParam().dtype;
    Bag model(std::vector<torch::Tensor>{torch::full({1}, -3.0, dtype), torch::zeros({0}, dtype),
                                         torch::tensor({3, -4, 12}, torch::kLong),
                                         torch::tensor({0.25, -0.5}, torch::dtype(dtype))});
    model->named_parameters()["p3"].set_requires_grad(false);
    auto sharded = fully_shard(*model, options(communicator));
    const auto slices = sharded->shard_slices();
    const std::map<std::string, std::vector<double>> want = {
        {"p0", {3, 3}}, {"p1", {0, 0}}, {"p2", {13, 12}}, {"p3", {std::sqrt(0.3125), 0.5}}};
    const auto two = parameter_norms(*sharded, NormOf::kParameter);
    const auto infinity = parameter_norms(*sharded, NormOf::kParameter, INFINITY);
    ASSERT_EQ(two.size(), 4u);
    for (size_t i = 0; i < two.size(); ++i) {
      EXPECT_NEAR(two[i], want.at(slices[i].fqn)[0], 1e-6) << slices[i].fqn;
      EXPECT_NEAR(infinity[i], want.at(slices[i].fqn)[1], 1e-6) << slices[i].fqn;
    }
    // A NaN in an update on the rank that holds p0 is seen on all ranks, under either norm.
    std::vector<torch::Tensor> updates(sharded->parameters().size());
    for (size_t i = 0; i < updates.size(); ++i) {
      const auto [name, leaf] = sharded->named_parameters()[i];
      const bool has_p0 = leaf.requires_grad() && leaf.numel() > 0;
      if (has_p0) updates[i] = torch::full_like(leaf, NAN).detach();
    }
    for (double p : {2.0, double(INFINITY)}) {
      const auto norms = parameter_norms(*sharded, updates, p);
      for (size_t i = 0; i < norms.size(); ++i) EXPECT_EQ(std::isnan(norms[i]), slices[i].fqn == "p0") << slices[i].fqn;
    }
  });
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int world_size : {1, 2, 3, 4, 8}) {
    for (ShardingStrategy strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard}) {
      for (bool orig : {true, false}) {
        for (at::ScalarType dtype : {at::kFloat, at::kDouble}) cases.push_back({world_size, strategy, orig, dtype});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ShardNorms, ::testing::ValuesIn(all_cases()), case_name);

TEST(ShardNormsErrors, NameTheMistake) {
  Bag model(std::vector<torch::Tensor>{numbers({2, 3}), numbers({4})});
  auto sharded = fully_shard(*model, testing::one_rank_options_for_lists());
  for (double p : {0.0, -1.0, double(NAN)}) {
    expect_error([&] { parameter_norms(*sharded, NormOf::kParameter, p); }, {"norm_type", "positive"});
  }
  expect_error([&] { parameter_norms(*sharded, std::vector<torch::Tensor>(3)); }, {"3 values for 2 leaves"});
  expect_error([&] { parameter_norms(*sharded, {numbers({6}), numbers({5})}); }, {"'p1'", "5 elements", "4"});
}

}  // namespace
}  // namespace fsdp
