// Steps of sharded training, with ranks as threads, against plain training with LibTorch's optimizer.
#include "training/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "config/errors.h"
#include "support/thread_ranks.h"
#include "testing/test_folder.h"
#include "testing/tiny_llama.h"
#include "training/checkpoint_policy.h"
#include "training/evaluation.h"
#include "training/sharding_options.h"
#include "training/training_inputs.h"

namespace fsdp::trainer {
namespace {

constexpr uint64_t kModelSeed = 11;
constexpr int64_t kLength = 9;

using Weights = std::map<std::string, at::Tensor>;

struct Training {
  std::vector<double> losses;  // mean over the global batch
  std::vector<double> grad_norms;
  Weights weights;
};

Config base_config() {
  Config config;
  config.max_seq_length = kLength;
  config.max_steps = 6;
  config.warmup_steps = 2;
  config.learning_rate = 1e-2;
  config.weight_decay = 0.1;
  config.clip_grad_norm = 0.5;
  config.dtype = "fp32";
  return config;
}

Dataset data() { return open_dataset("dummy:29", DatasetRole::kTrain, kLength, kTinyVocabulary, 42); }

TrainBatches batches_of(const Config& config, const Dataset& dataset, int rank, int world_size) {
  return {dataset,
          {.global = {config.train_batch_size, world_size, config.gradient_accumulation_steps},
           .rank = rank,
           .shuffle = config.shuffle,
           .seed = static_cast<uint64_t>(config.seed)}};
}

// Each parameter once: LibTorch lists a shared one under each of its names.
std::vector<at::Tensor> distinct_parameters(const models::CausalLM& model) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : model.parameters()) {
    const bool known =
        std::any_of(result.begin(), result.end(), [&](const at::Tensor& p) { return p.is_same(parameter); });
    if (!known) result.push_back(parameter);
  }
  return result;
}

// Plain training of the same global batches with LibTorch's AdamW and clipping: no code of this project but
// the model and the choice of samples.
Training reference(Config config, int world_size, bool tied) {
  config.train_batch_size *= world_size * config.gradient_accumulation_steps;
  config.gradient_accumulation_steps = 1;
  const Dataset dataset = data();
  TrainBatches batches = batches_of(config, dataset, 0, 1);
  auto model = make_tiny_llama(tied, kModelSeed);
  const auto parameters = distinct_parameters(*model);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1.0).weight_decay(config.weight_decay));
  Training training;
  for (int64_t step = 0; step < config.max_steps; ++step) {
    const double factor = step < 2 ? step / 2.0 : (6.0 - step) / 4.0;
    static_cast<torch::optim::AdamWOptions&>(optimizer.param_groups()[0].options()).lr(config.learning_rate * factor);
    optimizer.zero_grad();
    const at::Tensor tokens = batches.next();
    const at::Tensor loss = model->forward(tokens, tokens).loss;
    loss.backward();
    training.losses.push_back(loss.item<double>());
    training.grad_norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, config.clip_grad_norm));
    optimizer.step();
  }
  for (const auto& p : model->named_parameters()) training.weights[p.key()] = p.value().detach().clone();
  return training;
}

// The same by this trainer. All ranks must agree on norms and weights; those of rank 0 are returned.
Training sharded(const Config& config, int world_size, bool tied) {
  std::vector<std::shared_ptr<models::CausalLM>> models;
  for (int rank = 0; rank < world_size; ++rank) models.push_back(make_tiny_llama(tied, kModelSeed));
  const auto steps = static_cast<size_t>(config.max_steps);
  std::vector<Training> ranks(static_cast<size_t>(world_size),
                              {std::vector<double>(steps), std::vector<double>(steps), {}});
  testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
    const auto rank = static_cast<size_t>(communicator->rank());
    models::CausalLM& model = *models[rank];
    const auto handle = fully_shard(model, sharding_options(config, model, communicator));
    const Dataset dataset = data();
    TrainBatches batches = batches_of(config, dataset, communicator->rank(), world_size);
    TrainingRun run(config, model, *handle, batches);
    for (size_t step = 0; step < steps; ++step) {
      const StepResult result = run.step();
      ranks[rank].losses[step] = result.loss;
      ranks[rank].grad_norms[step] = result.grad_norm;
    }
    handle->for_each_full_parameter(
        [&](const std::string& name, const at::Tensor& full) { ranks[rank].weights[name] = full.clone(); });
  });
  for (const Training& rank : ranks) EXPECT_EQ(rank.grad_norms, ranks[0].grad_norms);
  for (size_t step = 0; step < steps; ++step) {
    for (size_t rank = 1; rank < ranks.size(); ++rank) ranks[0].losses[step] += ranks[rank].losses[step];
    ranks[0].losses[step] /= world_size;
  }
  return ranks[0];
}

void expect_same(const Training& actual, const Training& expected) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
    EXPECT_NEAR(actual.grad_norms[step], expected.grad_norms[step], 1e-5 * expected.grad_norms[step])
        << "step " << step;
  }
  for (const auto& [name, weight] : actual.weights) {
    const at::Tensor& other = expected.weights.at(name);
    EXPECT_LE((weight - other).norm().item<double>(), 1e-5 * other.norm().item<double>()) << name;
  }
}

struct Case {
  std::string strategy, wrap_policy;
  bool use_orig_params, tied;
  int world_size;
};

class SteppingRanks : public ::testing::TestWithParam<Case> {};

TEST_P(SteppingRanks, TrainAsOneProcessDoes) {
  const Case& c = GetParam();
  Config config = base_config();
  config.train_batch_size = 2;
  config.sharding_strategy = c.strategy;
  config.wrap_policy = c.wrap_policy;
  config.size_min_params = 500;
  config.use_orig_params = c.use_orig_params;
  expect_same(sharded(config, c.world_size, c.tied), reference(config, c.world_size, c.tied));
}

INSTANTIATE_TEST_SUITE_P(Cases, SteppingRanks,
                         ::testing::Values(Case{"full_shard", "transformer", true, true, 1},
                                           Case{"full_shard", "transformer", true, false, 2},
                                           Case{"full_shard", "transformer", false, true, 3},
                                           Case{"shard_grad_op", "size", true, false, 2},
                                           Case{"no_shard", "transformer", false, false, 2},
                                           Case{"full_shard", "none", true, false, 4}));

TEST(TrainingRun, AccumulationIsOneLargerBatch) {
  Config config = base_config();
  config.train_batch_size = 2;
  config.gradient_accumulation_steps = 3;
  expect_same(sharded(config, 2, false), reference(config, 2, false));
}

TEST(TrainingRun, ZeroMeansNoClipping) {
  Config config = base_config();
  config.clip_grad_norm = 0;
  const Training training = sharded(config, 2, false);
  config.clip_grad_norm = 1e30;
  expect_same(training, reference(config, 2, false));
}

// Blocks that the opened model recomputes, counted in the graph of a loss.
int64_t recomputed_blocks(const Config& config) {
  const auto model = open_training_inputs(config, 1).model;
  const auto handle = fully_shard(*model, sharding_options(config, *model, make_fake_communicator(0, 1)));
  const at::Tensor tokens = at::zeros({1, kLength}, at::kLong);
  const at::Tensor loss = model->forward(tokens, tokens).loss;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open = {&*loss.grad_fn()};
  int64_t count = 0;
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (!node || !seen.insert(node).second) continue;
    count += node->name() == "fsdp::Checkpoint";
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return count;
}

TEST(TrainingRun, RecomputesTheBlocksOfTheConfig) {
  TestFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/false, kModelSeed);
  Config config = base_config();
  config.model_path = folder.path("model");
  EXPECT_EQ(recomputed_blocks(config), 0);
  config.activation_checkpointing = true;
  EXPECT_EQ(recomputed_blocks(config), 3);
  config.activation_checkpointing_every = 2;
  EXPECT_EQ(recomputed_blocks(config), 2);
  EXPECT_EQ(checkpoint_policy(config).options().save_ops.selection(), nullptr);
  config.activation_checkpointing_save_ops = {"aten::mm"};
  EXPECT_NE(checkpoint_policy(config).options().save_ops.selection(), nullptr);
  config.activation_checkpointing_save_ops = {"aten::mmm"};
  EXPECT_THROW(checkpoint_policy(config), ConfigError);
}

// The embedding and the head become units of their own: names come from wrap_classes.
TEST(TrainingRun, WrapClassesMakeUnits) {
  Config config = base_config();
  const auto units = [&](std::vector<std::string> classes) {
    config.wrap_classes = std::move(classes);
    auto model = make_tiny_llama(false, kModelSeed);
    const auto handle = fully_shard(*model, sharding_options(config, *model, make_fake_communicator(0, 1)));
    return handle->describe_units();
  };
  EXPECT_NE(units({}), units({"Embedding"}));
  EXPECT_THROW(units({"Embeddding"}), std::exception);
}

TEST(Evaluation, IsTheMeanOverAllSamplesForAnyNumberOfRanks) {
  const Dataset dataset = open_dataset("dummy:7", DatasetRole::kEval, kLength, kTinyVocabulary, 42);
  auto plain = make_tiny_llama(true, kModelSeed);
  double expected = 0;
  for (int64_t i = 0; i < 7; ++i)
    expected += plain->forward(dataset.batch({i}), dataset.batch({i})).loss.item<double>() / 7;
  for (int world_size : {1, 2, 3, 4}) {
    std::vector<std::shared_ptr<models::CausalLM>> models;
    for (int rank = 0; rank < world_size; ++rank) models.push_back(make_tiny_llama(true, kModelSeed));
    std::vector<double> losses(static_cast<size_t>(world_size));
    testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
      const auto rank = static_cast<size_t>(communicator->rank());
      const auto handle = fully_shard(*models[rank], sharding_options(base_config(), *models[rank], communicator));
      losses[rank] = evaluate(*models[rank], dataset, 2, *communicator);
      EXPECT_TRUE(models[rank]->is_training());
    });
    for (double loss : losses) {
      EXPECT_NEAR(loss, expected, 1e-5 * expected);
      EXPECT_EQ(loss, losses[0]);
    }
  }
}

}  // namespace
}  // namespace fsdp::trainer
