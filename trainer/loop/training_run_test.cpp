// Compares steps of sharded training, with ranks as threads, with plain training with LibTorch's optimizer.
#include "loop/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <set>

#include "config/config_names.h"
#include "config/errors.h"
#include "fsdp/backends.h"
#include "loop/evaluation.h"
#include "loop/whole_passes.h"
#include "models/registry.h"
#include "saving/checkpoint_policy.h"
#include "setup/model_io.h"
#include "setup/sharding_options.h"
#include "setup/training_inputs.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "testing/compared_training.h"
#include "testing/tiny_gpt2.h"
#include "testing/tiny_llama.h"

namespace fsdp::trainer::training_run_test {
namespace {

constexpr uint64_t kModelSeed = 11;
constexpr int64_t kLength = 9;

using Weights = std::map<std::string, at::Tensor>;

Config base_config() {
  Config config = compared_config();
  config.data.max_seq_length = kLength;
  return config;
}

using MakeModel = std::shared_ptr<models::PretrainedModel> (*)(bool tied, uint64_t seed);

Subject tiny(bool tied, MakeModel make_model = make_tiny_llama) {
  return {[=] { return make_model(tied, kModelSeed); }};
}

Training sharded(const Config& config, int world_size, bool tied, MakeModel make_model = make_tiny_llama) {
  return train_in_shards(config, world_size, tiny(tied, make_model));
}

Training reference(const Config& config, int world_size, bool tied, MakeModel make_model = make_tiny_llama) {
  return train_plainly(config, world_size, tiny(tied, make_model));
}

struct Case {
  std::string strategy, wrap_policy;
  bool use_orig_params, tied;
  int world_size;
  std::optional<int64_t> sharding_factor = std::nullopt;
  std::optional<BoolOrInteger> reshard_after_forward = std::nullopt;
  MakeModel make_model = make_tiny_llama;
};

class SteppingRanks : public ::testing::TestWithParam<Case> {};

TEST_P(SteppingRanks, TrainAsOneProcessDoes) {
  const Case& c = GetParam();
  Config config = base_config();
  config.data.train_batch_size = 2;
  config.sharding.strategy = from_config_name<ShardingStrategy>(c.strategy);
  config.sharding.factor = c.sharding_factor;
  config.sharding.reshard_after_forward = c.reshard_after_forward;
  config.sharding.wrap_policy = from_config_name<UnitsBy>(c.wrap_policy);
  config.sharding.size_min_params = 500;
  if (c.wrap_policy == "auto_units") config.sharding.auto_units_target_bytes = 4000;
  config.sharding.use_orig_params = c.use_orig_params;
  expect_same(sharded(config, c.world_size, c.tied, c.make_model),
              reference(config, c.world_size, c.tied, c.make_model));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SteppingRanks,
    ::testing::Values(
        Case{"full_shard", "transformer", true, true, 1}, Case{"full_shard", "transformer", true, false, 2},
        Case{"full_shard", "transformer", false, true, 3}, Case{"shard_grad_op", "size", true, false, 2},
        Case{"no_shard", "transformer", false, false, 2}, Case{"full_shard", "none", true, false, 4},
        Case{"full_shard", "auto_units", true, true, 3}, Case{"shard_grad_op", "auto_units", true, false, 2},
        Case{"no_shard", "auto_units", true, false, 4}, Case{"hybrid_shard", "auto_units", true, true, 4, 2},
        Case{"hybrid_shard", "transformer", true, true, 4, 2}, Case{"hybrid_shard_zero2", "size", false, false, 4, 2},
        Case{"hybrid_shard", "transformer", false, false, 3, 1}, Case{"hybrid_shard", "transformer", true, false, 2},
        Case{"full_shard", "transformer", true, false, 4, {}, int64_t{2}},
        Case{"hybrid_shard", "none", false, true, 4, 4, int64_t{2}},
        Case{"full_shard", "transformer", true, false, 2, {}, true},
        Case{"full_shard", "transformer", true, false, 2, {}, false},
        Case{"full_shard", "transformer", true, true, 1, {}, {}, make_tiny_gpt2},
        Case{"full_shard", "transformer", true, false, 2, {}, {}, make_tiny_gpt2},
        Case{"full_shard", "transformer", false, true, 3, {}, {}, make_tiny_gpt2},
        Case{"hybrid_shard", "auto_units", true, true, 4, 2, {}, make_tiny_gpt2}));

// sharding_factor ranks share one copy of the model, and reshard_after_forward decides which units are gathered again.
TEST(TrainingRun, FactorAndReshardingReachTheEngine) {
  Config config = base_config();
  const auto gathers = [&](std::optional<BoolOrInteger> reshard) {
    config.sharding.reshard_after_forward = reshard;
    return sharded(config, 4, false).stats.all_gathers;
  };
  const int64_t kept = gathers(false);
  EXPECT_GT(gathers(std::nullopt), kept);
  EXPECT_GT(gathers(true), kept);
  EXPECT_GT(gathers(int64_t{2}), kept);
  config.sharding.reshard_after_forward = std::nullopt;
  EXPECT_EQ(sharded(config, 4, false).stats.all_reduces, 0);
  config.sharding.strategy = ShardingStrategy::kHybridShard;
  config.sharding.factor = 2;
  EXPECT_GT(sharded(config, 4, false).stats.all_reduces, 0);
  const auto model = make_tiny_llama(false, kModelSeed);
  const auto option = [&](std::optional<BoolOrInteger> reshard) {
    config.sharding.reshard_after_forward = reshard;
    return sharding_options(config, *model, nullptr).reshard_after_forward;
  };
  EXPECT_EQ(option(std::nullopt), std::nullopt);
  EXPECT_EQ(option(true), ReshardAfterForward(true));
  EXPECT_EQ(option(false), ReshardAfterForward(false));
  EXPECT_EQ(option(int64_t{2}), ReshardAfterForward(2));
}

struct Accumulation {
  bool sync_each_batch = true, all_reduce_each_batch = true;
  int reductions = 0, all_reductions = 0;  // of a unit in one optimizer step
  std::string strategy = "full_shard";
};

class AccumulatingRanks : public ::testing::TestWithParam<Accumulation> {};

TEST_P(AccumulatingRanks, TrainAsWithOneLargerBatch) {
  const Accumulation& c = GetParam();
  Config config = base_config();
  config.data.train_batch_size = 2;
  config.steps.gradient_accumulation_steps = 3;
  config.sharding.strategy = from_config_name<ShardingStrategy>(c.strategy);
  if (is_hybrid(config.sharding.strategy)) config.sharding.factor = 2;
  config.steps.sync_each_batch = c.sync_each_batch;
  config.steps.all_reduce_each_batch = c.all_reduce_each_batch;
  const Training training = sharded(config, 4, false);
  expect_same(training, reference(config, 4, false));
  constexpr int64_t kUnits = 4;  // three blocks and the root
  EXPECT_EQ(training.stats.reduce_scatters, c.reductions * kUnits * config.steps.max_steps);
  EXPECT_EQ(training.stats.all_reduces, c.all_reductions * kUnits * config.steps.max_steps);
}

INSTANTIATE_TEST_SUITE_P(Ways, AccumulatingRanks,
                         ::testing::Values(Accumulation{true, true, 3, 0}, Accumulation{false, true, 1, 0},
                                           Accumulation{false, true, 1, 0, "shard_grad_op"},
                                           Accumulation{true, true, 0, 3, "no_shard"},
                                           Accumulation{false, true, 0, 1, "no_shard"},
                                           Accumulation{true, true, 3, 3, "hybrid_shard"},
                                           Accumulation{true, false, 3, 1, "hybrid_shard"},
                                           Accumulation{true, false, 3, 1, "hybrid_shard_zero2"},
                                           Accumulation{false, true, 1, 1, "hybrid_shard"}));

TEST(TrainingRun, GradientsAreDividedByTheFactor) {
  Config config = base_config();
  const Training mean = sharded(config, 2, false);
  config.steps.gradient_divide_factor = 8;
  const Training divided = sharded(config, 2, false);
  // The learning rate of the first step is 0, so both steps use the same weights; a factor of 2 / 8 is exact.
  for (size_t step : {0, 1}) EXPECT_DOUBLE_EQ(divided.grad_norms[step], mean.grad_norms[step] / 4);
}

// Compares losses and norms of AdamW's first updates; fp16 rounds by 5e-4 of a value.
TEST(TrainingRun, Fp16TrainsWithGradientsOfTheTrueSize) {
  Config config = base_config();
  config.data.train_batch_size = 2;
  const Training expected = reference(config, 2, false);
  for (const char* reduce : {"fp16", "fp32"}) {
    config.precision.dtype = c10::kHalf;
    config.precision.reduce_dtype = from_config_name<c10::ScalarType>(reduce);
    config.precision.fp16_init_scale = 1024;
    const Training training = sharded(config, 2, false);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_FALSE(training.steps[step].skipped);
      EXPECT_EQ(training.steps[step].loss_scale, 1024);
      EXPECT_NEAR(training.losses[step], expected.losses[step], 2e-3 * expected.losses[step]);
      EXPECT_NEAR(training.grad_norms[step], expected.grad_norms[step], 1e-2 * expected.grad_norms[step]);
    }
  }
}

TEST(TrainingRun, OverflowSkipsTheStepAndHoldsTheSchedule) {
  Config config = base_config();
  config.optimizer.warmup_steps = 0;
  config.steps.max_steps = 1;
  config.precision.dtype = c10::kHalf;
  config.precision.fp16_init_scale = 1e30;
  const Training skipped = sharded(config, 2, false);
  EXPECT_TRUE(skipped.steps[0].skipped);
  EXPECT_FALSE(std::isfinite(skipped.grad_norms[0]));
  const auto original = make_tiny_llama(false, kModelSeed);
  for (const auto& p : original->named_parameters()) EXPECT_TRUE(torch::equal(skipped.weights.at(p.key()), p.value()));

  config.steps.max_steps = 30;
  config.precision.fp16_init_scale = 1 << 24;
  config.precision.fp16_growth_interval = 4;
  const Training training = sharded(config, 2, false);
  LrSchedule schedule(config.optimizer.lr_scheduler_type, config.optimizer.learning_rate, 0, config.steps.max_steps);
  double scale = 1 << 24;
  int64_t updates = 0, good = 0;
  for (const StepResult& step : training.steps) {
    EXPECT_EQ(step.loss_scale, scale);
    EXPECT_EQ(step.learning_rate, schedule.at(updates));
    EXPECT_EQ(step.skipped, !std::isfinite(step.grad_norm));
    updates += !step.skipped;
    good = step.skipped ? 0 : good + 1;
    if (step.skipped) scale /= 2;
    if (good == 4) {
      scale *= 2;
      good = 0;
    }
  }
  EXPECT_GT(updates, 4);
  EXPECT_LT(updates, config.steps.max_steps);
}

TEST(TrainingRun, OnlyFp16ScalesLosses) {
  Config config = base_config();
  config.steps.max_steps = 1;
  const auto scale = [&](const std::string& dtype, const std::string& reduce) {
    config.precision.dtype = from_config_name<c10::ScalarType>(dtype);
    config.precision.reduce_dtype = from_config_name<c10::ScalarType>(reduce);
    return sharded(config, 2, false).steps[0].loss_scale;
  };
  EXPECT_EQ(scale("bf16", "fp32"), std::nullopt);
  EXPECT_EQ(scale("fp16", "fp32"), 65536);
  EXPECT_EQ(scale("fp32", "fp16"), 65536);
}

TEST(TrainingRun, PrecisionKeysReachTheEngine) {
  Config config = base_config();
  const auto model = make_tiny_llama(false, kModelSeed);
  const auto options = [&] { return sharding_options(config, *model, nullptr); };
  EXPECT_EQ(options().buffer_dtype, std::nullopt);
  EXPECT_FALSE(options().keep_low_precision_grads);
  config.precision.dtype = c10::kHalf;
  config.precision.reduce_dtype = c10::kBFloat16;
  config.precision.buffer_dtype = c10::kHalf;
  config.precision.keep_low_precision_grads = true;
  config.precision.full_precision_classes = {"RMSNorm"};
  EXPECT_EQ(options().param_dtype, at::kHalf);
  EXPECT_EQ(options().reduce_dtype, at::kBFloat16);
  EXPECT_EQ(options().buffer_dtype, at::kHalf);
  EXPECT_TRUE(options().keep_low_precision_grads);
  EXPECT_EQ(options().full_precision_classes, std::vector<std::string>{"RMSNorm"});
  config.precision.full_precision_classes = {"RMSNrom"};
  EXPECT_THROW(options(), ConfigError);
}

TEST(TrainingRun, DivergenceKeysReachTheEngine) {
  Config config = base_config();
  const auto model = make_tiny_llama(false, kModelSeed);
  const auto debug = [&] { return sharding_options(config, *model, nullptr).debug; };
  EXPECT_EQ(debug().collective_check, CollectiveCheck{});
  EXPECT_EQ(debug().watchdog_warning, std::nullopt);
  EXPECT_EQ(debug().dump_folder, config.output.output_dir);
  config.divergence.collective_check = CollectiveCheckLevel::kAlways;
  config.divergence.watchdog_seconds = 2.5;
  config.divergence.collective_dump = false;
  EXPECT_EQ(debug().collective_check.level, CollectiveCheckLevel::kAlways);
  EXPECT_EQ(debug().watchdog_warning, std::chrono::milliseconds(2500));
  EXPECT_EQ(debug().dump_folder, "");
  config.divergence.collective_check = CollectiveCheckLevel::kOff;
  EXPECT_EQ(debug().collective_check.level, CollectiveCheckLevel::kOff);
  config.divergence.collective_check = CollectiveCheckLevel::kSampled;
  config.divergence.collective_check_first_steps = 5;
  config.divergence.collective_check_every = 0;
  EXPECT_EQ(debug().collective_check,
            (CollectiveCheck{.level = CollectiveCheckLevel::kSampled, .first_steps = 5, .every = 0}));
}

// Accepts any class of the model, also classes whose results differ in dtype from the input of the following module.
// The last class is the whole model.
void expect_classes_train_in_full_precision(MakeModel make_model, const std::vector<std::string>& classes) {
  Config config = base_config();
  config.data.train_batch_size = 2;
  config.steps.max_steps = 3;
  const Training expected = reference(config, 2, false, make_model);
  config.precision.dtype = c10::kBFloat16;
  for (const std::string& name : classes) {
    config.precision.full_precision_classes = {name};
    const Training training = sharded(config, 2, false, make_model);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(training.losses[step], expected.losses[step], 1e-2 * expected.losses[step]) << name;
    }
    if (name != classes.back()) continue;
    EXPECT_NEAR(training.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
  }
}

TEST(TrainingRun, EveryClassMayStayInFullPrecision) {
  expect_classes_train_in_full_precision(
      make_tiny_llama, {"RMSNorm", "Embedding", "Linear", "DecoderAttention", "DecoderMLP", "DecoderLayer",
                        "ModuleList", "DecoderModel", "DecoderForCausalLM"});
  expect_classes_train_in_full_precision(
      make_tiny_gpt2, {"LayerNorm", "Embedding", "Conv1D", "Linear", "GPT2Attention", "GPT2MLP", "GPT2Block",
                       "ModuleList", "GPT2Model", "GPT2LMHeadModel"});
}

TEST(TrainingRun, ZeroMeansNoClipping) {
  Config config = base_config();
  config.steps.clip_grad_norm = 0;
  const Training training = sharded(config, 2, false);
  config.steps.clip_grad_norm = 1e30;
  expect_same(training, reference(config, 2, false));
}

// Returns the number of blocks that the opened model recomputes, counted in the graph of a loss.
int64_t recomputed_blocks(const Config& config) {
  const auto model = open_training_inputs(config, 1).model;
  const Options options = sharding_options(config, model->module(), make_fake_communicator(0, 1));
  const auto handle = fully_shard(model->module(), options);
  const at::Tensor tokens = at::zeros({1, kLength}, at::kLong);
  const at::Tensor loss = model->loss({.inputs = tokens, .labels = tokens});
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
  testing::TemporaryFolder folder;
  write_tiny_llama(folder.path("model"), /*tied=*/false, kModelSeed);
  Config config = base_config();
  config.model.path = folder.path("model");
  EXPECT_EQ(recomputed_blocks(config), 0);
  config.model.activation_checkpointing = true;
  EXPECT_EQ(recomputed_blocks(config), 3);
  config.model.activation_checkpointing_every = 2;
  EXPECT_EQ(recomputed_blocks(config), 2);
  EXPECT_EQ(checkpoint_policy(config.model).options().save_ops.selection(), nullptr);
  config.model.activation_checkpointing_save_ops = {"aten::mm"};
  EXPECT_NE(checkpoint_policy(config.model).options().save_ops.selection(), nullptr);
  config.model.activation_checkpointing_save_ops = {"aten::mmm"};
  EXPECT_THROW(checkpoint_policy(config.model), ConfigError);
}

// The embedding and the head become their own units: their names come from wrap_classes.
TEST(TrainingRun, WrapClassesMakeUnits) {
  Config config = base_config();
  const auto units = [&](std::vector<std::string> classes) {
    config.sharding.wrap_classes = std::move(classes);
    auto model = make_tiny_llama(false, kModelSeed);
    const auto handle = fully_shard(*model, sharding_options(config, *model, make_fake_communicator(0, 1)));
    return handle->diagnostics().describe_units();
  };
  EXPECT_NE(units({}), units({"Embedding"}));
  EXPECT_THROW(units({"Embeddding"}), std::exception);
}

TEST(Evaluation, IsTheMeanOverAllSamplesForAnyNumberOfRanks) {
  const Config config = base_config();
  const auto make = [&] { return make_trained_model(make_tiny_llama(true, kModelSeed), config); };
  const auto plain = make();
  const auto dataset = plain->open_dataset({.text = "dummy:7", .role = DatasetRole::kEval, .seed = 42});
  double expected = 0;
  for (int64_t i = 0; i < 7; ++i) expected += plain->loss(dataset->batch({i})).item<double>() / 7;
  for (int world_size : {1, 2, 3, 4}) {
    std::vector<std::unique_ptr<TrainedModel>> models;
    for (int rank = 0; rank < world_size; ++rank) models.push_back(make());
    std::vector<double> losses(static_cast<size_t>(world_size));
    testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
      const auto rank = static_cast<size_t>(communicator->rank());
      models::PretrainedModel& module = models[rank]->module();
      const auto handle = fully_shard(module, sharding_options(config, module, communicator));
      WholePasses passes(config.steps, *models[rank], *handle);
      losses[rank] = evaluate(passes, {&module}, *dataset, 2, {*communicator, *communicator});
      EXPECT_TRUE(module.is_training());
    });
    for (double loss : losses) {
      EXPECT_NEAR(loss, expected, 1e-5 * expected);
      EXPECT_EQ(loss, losses[0]);
    }
  }
}

// Returns each rank's shards, read by the rank itself or sent by rank 0.
Weights loaded_shards(const Config& config, const std::shared_ptr<Communicator>& world, bool from_rank_0) {
  formats::HfFolder folder(*config.model.path);
  const auto model = models::make_uninitialized<models::PretrainedModel>(
      folder.config(), at::TensorOptions(at::kFloat).device(at::kMeta));
  const models::PretrainedWeights weights(std::move(folder), *model);
  Options options = sharding_options(config, *model, world);
  if (from_rank_0) read_whole(weights, *model, options);
  options.sync_module_states = from_rank_0;
  const auto handle = fully_shard(*model, options);
  if (!from_rank_0) load_into_shards(weights, *handle);
  Weights shards;
  for (const ShardSlice& slice : handle->shard_slices()) shards[slice.fqn] = slice.data.clone();
  return shards;
}

// Expects the weights of `model`; the folder at config.model.path contains the same model.
void expect_shards_hold_the_weights(Config config, const models::PretrainedModel& model) {
  const auto parameters = model.named_parameters();
  for (const char* policy : {"transformer", "none", "auto_units"}) {
    config.sharding.wrap_policy = from_config_name<UnitsBy>(policy);
    for (int world_size : {1, 3}) {
      testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> world) {
        const Weights own = loaded_shards(config, world, false), sent = loaded_shards(config, world, true);
        ASSERT_EQ(sent.size(), own.size());
        for (const auto& [name, shard] : own) EXPECT_TRUE(torch::equal(sent.at(name), shard)) << name;
        if (world_size > 1) return;
        for (const auto& [name, shard] : own) EXPECT_TRUE(torch::equal(parameters[name].view(-1), shard)) << name;
      });
    }
  }
}

TEST(Loading, RanksReadForThemselvesOrRankZeroForAll) {
  testing::TemporaryFolder folder;
  for (const bool tied : {false, true}) {
    Config config = base_config();
    config.model.path = folder.path(tied ? "tied" : "untied");
    write_tiny_llama(*config.model.path, tied, kModelSeed);
    expect_shards_hold_the_weights(config, *make_tiny_llama(tied, kModelSeed));
    *config.model.path += "_old_gpt2";
    write_old_tiny_gpt2(*config.model.path, tied, kModelSeed);
    expect_shards_hold_the_weights(config, *make_tiny_gpt2(tied, kModelSeed));
  }
}

}  // namespace
}  // namespace fsdp::trainer::training_run_test
