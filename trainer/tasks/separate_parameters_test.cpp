// Tests how a training run handles parameters that are not in shards.
#include "tasks/separate_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "loop/whole_passes.h"
#include "models/testing/small_models.h"
#include "setup/sharding_options.h"
#include "support/ranks/thread_ranks.h"
#include "testing/compared_training.h"
#include "testing/tiny_model.h"

namespace fsdp::trainer::separate_parameters_test {
namespace {

using ::testing::ElementsAre;

// Records the calls of its functions.
struct Noted : SeparateParameters {
  void make(const std::shared_ptr<Communicator>&, c10::Device, const std::optional<std::filesystem::path>&) override {}
  void save(const std::filesystem::path&) const override {}
  double learning_rate() const override { return 8.0; }
  void zero_grad() override { ++steps; }
  double grad_norm() const override { return norms.at(static_cast<size_t>(steps - 1)); }
  void step(double learning_rate, double gradient_scale) override {
    learning_rates.push_back(learning_rate);
    scales.push_back(gradient_scale);
  }
  std::vector<SplitTensor> split_tensors() const override { return {}; }
  std::vector<MemoryCategory> memory() const override { return {{.name = "noted"}}; }

  std::vector<double> norms;
  int steps = 0;
  std::vector<double> learning_rates, scales;
};

class WithSeparate : public TrainedModel {
 public:
  WithSeparate(std::unique_ptr<TrainedModel> model, SeparateParameters& separate)
      : model_(std::move(model)), separate_(separate) {}
  models::PretrainedModel& module() const override { return model_->module(); }
  std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const override { return model_->open_dataset(spec); }
  at::Tensor loss(const Batch& batch) const override { return model_->loss(batch); }
  SampleWork sample_work(const Batch& batch) const override { return model_->sample_work(batch); }
  SeparateParameters* separate_parameters() const override { return &separate_; }

 private:
  std::unique_ptr<TrainedModel> model_;
  SeparateParameters& separate_;
};

// Runs two ranks of a tiny Llama and passes rank 0's steps to `check`.
void run(const Config& config, std::vector<double> norms,
         const std::function<void(const std::vector<StepResult>&, const Noted&)>& check) {
  std::vector<std::shared_ptr<models::PretrainedModel>> models;
  for (int rank = 0; rank < 2; ++rank) models.push_back(make_tiny_model(models::small_llama(), 5));
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> communicator) {
    Noted separate;
    separate.norms = norms;
    auto& module = models[static_cast<size_t>(communicator->rank())];
    const WithSeparate model(make_trained_model(module, config), separate);
    const auto sharded = fully_shard(*module, sharding_options(config, *module, communicator));
    const auto data = model.open_dataset({.text = "dummy:8"});
    TrainBatches batches(*data, {.global = {2, 2, 1}, .rank = communicator->rank()});
    WholePasses passes(config.steps, model, *sharded);
    TrainingRun training(config, passes, &separate, batches);
    std::vector<StepResult> steps;
    for (size_t step = 0; step < norms.size(); ++step) steps.push_back(training.step());
    EXPECT_EQ(separate.steps, static_cast<int>(norms.size()));
    EXPECT_EQ(training.memory().back().name, "noted");
    if (communicator->rank() == 0) check(steps, separate);
  });
}

Config small_config() {
  Config config = compared_config();
  config.data.max_seq_length = 9;
  config.steps.max_steps = 4;
  config.optimizer.warmup_steps = 0;
  config.steps.clip_grad_norm = 0;
  return config;
}

TEST(SeparateParameters, StepByTheScheduleOfTheirOwnRate) {
  run(small_config(), {0, 0, 0}, [](const auto& /*steps*/, const Noted& separate) {
    EXPECT_THAT(separate.learning_rates, ElementsAre(8.0, 6.0, 4.0));
    EXPECT_THAT(separate.scales, ElementsAre(1.0, 1.0, 1.0));
  });
}

// The norm of separate parameters is part of the total norm, by which all gradients are clipped.
TEST(SeparateParameters, AreClippedWithTheOthers) {
  Config config = small_config();
  config.steps.clip_grad_norm = 2;
  run(config, {0, 40}, [&](const std::vector<StepResult>& steps, const Noted& separate) {
    EXPECT_LT(steps[0].grad_norm, 40);
    EXPECT_GT(steps[1].grad_norm, 40);
    EXPECT_NEAR(separate.scales[1], 2 / steps[1].grad_norm, 1e-6);
  });
}

// Only the norm of separate parameters is not finite in the second step: all parameters skip it, the scale is reduced,
// and the schedule does not advance.
TEST(SeparateParameters, AreUnscaledAndDecideAboutSteps) {
  Config config = small_config();
  config.precision.dtype = c10::kHalf;
  config.precision.fp16_init_scale = 256;
  const double infinity = std::numeric_limits<double>::infinity();
  run(config, {512e3, infinity, 0}, [](const std::vector<StepResult>& steps, const Noted& separate) {
    EXPECT_NEAR(steps[0].grad_norm, 2000, 1);
    EXPECT_FALSE(steps[0].skipped);
    EXPECT_TRUE(steps[1].skipped);
    EXPECT_FALSE(steps[2].skipped);
    EXPECT_EQ(steps[2].loss_scale, 128);
    EXPECT_THAT(separate.scales, ElementsAre(1.0 / 256, 1.0 / 128));
    EXPECT_THAT(separate.learning_rates, ElementsAre(8.0, 6.0));
  });
}

}  // namespace
}  // namespace fsdp::trainer::separate_parameters_test
