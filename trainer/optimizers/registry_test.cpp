// Tests that the optimizers of the table train as LibTorch's do, and that their keys exist.
#include "optimizers/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "config/config_schema.h"
#include "data/batches.h"
#include "support/files/temporary_folder.h"
#include "tasks/trained_model.h"
#include "testing/compared_training.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer::registry_test {
namespace {

constexpr int64_t kLength = 9;

Config sgd_config() {
  Config config = compared_config();
  config.data.max_seq_length = kLength;
  config.optimizer.name = "sgd";
  config.optimizer.sgd_momentum = 0.9;
  config.optimizer.learning_rate = 0.1;
  return config;
}

Subject tiny_subject() {
  return {[] { return make_tiny_llama(/*tied=*/false, /*seed=*/11); }};
}

TEST(OptimizerTable, NamesAreUniqueAndKeysExist) {
  std::set<std::string> names;
  for (const OptimizerKind& kind : optimizer_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    for (const char* key : kind.keys) EXPECT_NE(find_config_key(key), nullptr) << key;
  }
  EXPECT_EQ(optimizer_names().at(0), Config{}.optimizer.name);
}

TEST(OptimizerTable, SizesAreThoseOfTheState) {
  for (const double momentum : {0.0, 0.5}) {
    for (const OptimizerKind& kind : optimizer_kinds()) {
      OptimizerConfig config;
      config.sgd_momentum = momentum;
      at::Tensor parameter = torch::ones({1000}).set_requires_grad(true);
      const auto optimizer = kind.make({parameter}, config);
      parameter.mutable_grad() = torch::ones({1000});
      optimizer->step();
      const auto nbytes = kind.state_tensors(config) * static_cast<int64_t>(parameter.nbytes());
      EXPECT_LE(nbytes, optimizer->state_nbytes()) << kind.name;
      EXPECT_GE(nbytes + 8, optimizer->state_nbytes()) << kind.name << ": apart from a number of steps";
    }
  }
}

TEST(SgdTraining, IsThatOfOneProcess) {
  Config config = sgd_config();
  config.data.train_batch_size = 2;
  for (const int world_size : {1, 2, 3}) {
    SCOPED_TRACE(world_size);
    expect_same(train_in_shards(config, world_size, tiny_subject()), train_plainly(config, world_size, tiny_subject()));
  }
}

// Trains on one sample in one process by torch::optim::SGD, with `factor` times the gradients.
std::map<std::string, at::Tensor> trained_on_one_sample(const Config& config, const std::string& file, int factor) {
  const auto model = make_trained_model(tiny_subject().make_model(), config);
  const auto dataset = model->open_dataset({.text = file, .role = DatasetRole::kTrain, .seed = 1});
  torch::optim::SGD optimizer(model->module().parameters(), torch::optim::SGDOptions(config.optimizer.learning_rate)
                                                                .momentum(config.optimizer.sgd_momentum)
                                                                .weight_decay(config.optimizer.weight_decay));
  for (int64_t step = 0; step < config.steps.max_steps; ++step) {
    model->module().zero_grad();
    model->loss(dataset->batch({0})).backward();
    for (const at::Tensor& parameter : model->module().parameters()) parameter.mutable_grad().mul_(factor);
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& p : model->module().named_parameters()) weights[p.key()] = p.value().detach();
  return weights;
}

// All samples are the same and gradients are summed, so that up to three ranks round as one process does.
TEST(SgdTraining, HasTheBitsOfTorchsSgd) {
  testing::TemporaryFolder folder;
  std::string samples;
  for (int i = 0; i < 12; ++i) samples += std::string("\5\2\7\1\11\3\4\6\10", kLength);
  Subject subject = tiny_subject();
  subject.dataset = folder.write("samples", samples);
  Config config = sgd_config();
  config.data.train_batch_size = 1;
  config.optimizer.lr_scheduler_type = LrSchedulerType::kConstant;
  config.optimizer.warmup_steps = 0;
  config.steps.clip_grad_norm = 0;
  config.steps.gradient_divide_factor = 1.0;
  for (const int world_size : {1, 2, 3}) {
    SCOPED_TRACE(world_size);
    const auto expected = trained_on_one_sample(config, subject.dataset, world_size);
    const Training got = train_in_shards(config, world_size, subject);
    ASSERT_EQ(got.weights.size(), expected.size());
    for (const auto& [name, weight] : got.weights) EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name;
  }
}

}  // namespace
}  // namespace fsdp::trainer::registry_test
