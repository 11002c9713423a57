// A DHEN in one training loop, with dense layers under fully_shard and tables split over ranks. Losses, dense weights
// and rows equal those of one process with whole tables.
#include "models/dhen.h"

#include <nlohmann/json.hpp>

#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"
#include "support/training/one_process.h"

namespace fsdp {
namespace {

using models::Dhen;
using models::DhenConfig;
using testing::descend;
using testing::seeded;
using testing::ShardingCase;

constexpr int64_t kBatch = 6;
constexpr double kRate = 1.0 / 16;  // also that of testing::descend

DhenConfig small_config() {
  return models::parse_dhen_config({{"num_numeric_features", 3},
                                    {"table_rows", {2, 11, 30}},
                                    {"embedding_width", 8},
                                    {"num_hidden_layers", 2},
                                    {"interactions", {"attention", "cross", "dot_product", "linear", "mlp"}},
                                    {"interaction_outputs", 2},
                                    {"cross_rank", 3},
                                    {"mlp_size", 5},
                                    {"head_sizes", {9}},
                                    {"initializer_range", 0.3}});
}

Dhen made(const std::shared_ptr<models::FeatureEmbedding>& embedding) {
  return seeded([&] {
    Dhen model(small_config(), embedding, at::kDouble);
    model->initialize();
    return model;
  });
}

at::Tensor loss_of(Dhen& model, int rank, int step) {
  const at::Tensor counter = torch::arange(kBatch * 3).view({kBatch, 3}) + 13 * rank + 29 * step;
  const at::Tensor numeric = counter.to(at::kDouble).sin();
  const at::Tensor categorical = (counter * 5).remainder(torch::tensor({2, 11, 30}));
  return model->forward(numeric, categorical, categorical.sum(1) % 2).loss;
}

struct Trained {
  std::vector<std::vector<double>> losses;  // by step and rank
  std::map<std::string, at::Tensor> weights;
};

Trained train_in_one_process(int world_size) {
  auto model = made(models::WholeEmbedding(small_config().tables(), at::kDouble).ptr());
  Trained result;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    result.losses.emplace_back();
    for (int rank = 0; rank < world_size; ++rank) {
      const at::Tensor loss = loss_of(model, rank, step);
      (loss / world_size).backward();
      result.losses.back().push_back(loss.item<double>());
    }
    descend(model->parameters());
  }
  result.weights = testing::weights_of(*model);
  return result;
}

void expect_rows_of(const sparse::SplitEmbedding& embedding, const at::Tensor& whole) {
  int64_t first = 0;
  for (const auto& piece : embedding.pieces()) {
    const at::Tensor expected = whole.narrow(0, first + piece.begin, piece.values.size(0));
    EXPECT_TRUE(torch::allclose(piece.values, expected, 1e-12, 1e-12)) << piece.name;
    first += piece.rows;
  }
}

class DhenTraining : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(DhenTraining, IsThatOfOneProcess) {
  const ShardingCase& sharding = GetParam();
  const Trained want = train_in_one_process(sharding.world_size);
  testing::run_on_ranks(sharding.world_size, [&](const std::shared_ptr<Communicator>& world) {
    sparse::SplitEmbeddingOptions in_double;
    in_double.dtype = at::kDouble;
    const auto embedding = std::make_shared<sparse::SplitEmbedding>(world, small_config().tables(), in_double);
    auto model = made(embedding);
    const auto sharded = testing::shard(*model, sharding, testing::options_of(sharding, world));
    sparse::RowOptimizer rows(embedding, {sparse::RowRule::kSgd, kRate});
    for (size_t step = 0; step < want.losses.size(); ++step) {
      sharded->zero_grad();
      rows.zero_grad();
      const at::Tensor loss = loss_of(model, world->rank(), static_cast<int>(step));
      loss.backward();
      descend(sharded->parameters());
      rows.step();
      EXPECT_NEAR(loss.item<double>(), want.losses[step][static_cast<size_t>(world->rank())], 1e-12) << step;
    }
    for (const auto& [name, weight] : testing::weights_of(*sharded)) {
      EXPECT_TRUE(torch::allclose(weight, want.weights.at(name), 1e-12, 1e-12)) << name;
    }
    EXPECT_EQ(testing::weights_of(*sharded).size() + 1, want.weights.size());  // all but the tables
    expect_rows_of(*embedding, want.weights.at("embedding.weight"));
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, DhenTraining, ::testing::ValuesIn(testing::sharding_cases()),
                         [](const auto& info) { return testing::name_of(info.param); });

}  // namespace
}  // namespace fsdp
