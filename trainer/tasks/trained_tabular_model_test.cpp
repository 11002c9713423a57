// Tests models of tabular data in the trainer: dense layers in shards and tables split over ranks, as in one process.
#include "tasks/trained_tabular_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <numeric>

#include "config/config_names.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/safetensors/safetensors_writer.h"
#include "fsdp/backends.h"
#include "models/pretrained.h"
#include "models/testing/small_models.h"
#include "saving/checkpoint_list.h"
#include "sparse/row_files.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "testing/compared_training.h"
#include "testing/tiny_model.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::trained_tabular_model_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

Config tabular_config() {
  Config config = compared_config();
  config.data.train_batch_size = 3;
  config.optimizer.sparse_learning_rate = 0.05;
  // Adam takes steps of the same length for gradients that consist of rounding errors only.
  config.optimizer.adam_epsilon = 1e-3;
  return config;
}

Subject dhen() {
  return {.make_model = [] { return make_tiny_model(models::small_dhen(), 5); }, .dataset = "dummy:61"};
}

// ---------------------------------------------------------------- steps

struct Case {
  std::string strategy;
  int world_size;
  int64_t passes;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}) {
    for (const int world_size : {1, 2, 3, 4}) {
      for (const int64_t passes : {1, 2}) all.push_back({strategy, world_size, passes});
    }
  }
  return all;
}

class Strategies : public ::testing::TestWithParam<Case> {};

TEST_P(Strategies, TrainAsOneProcessDoes) {
  const Case& c = GetParam();
  Config config = tabular_config();
  config.sharding.strategy = from_config_name<ShardingStrategy>(c.strategy);
  if (is_hybrid(config.sharding.strategy)) config.sharding.factor = c.world_size % 2 == 0 ? 2 : 1;
  config.steps.gradient_accumulation_steps = c.passes;
  const Training got = train_in_shards(config, c.world_size, dhen()),
                 want = train_plainly(config, c.world_size, dhen());
  EXPECT_EQ(got.weights.size(), want.weights.size());
  EXPECT_GT(got.grad_norms[0], config.steps.clip_grad_norm);
  expect_same(got, want);
}

INSTANTIATE_TEST_SUITE_P(All, Strategies, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return c.strategy + "_" + std::to_string(c.world_size) + "_ranks_" + std::to_string(c.passes) + "_passes";
});

void expect_same_as_plain(const Config& config, int world_size) {
  expect_same(train_in_shards(config, world_size, dhen()), train_plainly(config, world_size, dhen()));
}

TEST(TabularTraining, WithOtherOptions) {
  Config config = tabular_config();
  config.optimizer.sparse_optimizer = sparse::RowRule::kSgd;
  config.optimizer.sparse_learning_rate = 0.7;
  config.steps.clip_grad_norm = 100;
  expect_same_as_plain(config, 3);
  config.steps.clip_grad_norm = 0.1;
  config.steps.gradient_accumulation_steps = 3;
  config.steps.sync_each_batch = false;
  config.sharding.wrap_policy = UnitsBy::kAutoUnits;
  config.sharding.auto_units_target_bytes = 4000;
  expect_same_as_plain(config, 2);
}

// The sum over ranks is divided by this number: the whole gradient, including rows, doubles.
TEST(TabularTraining, DividesGradientsByTheGivenFactor) {
  Config config = tabular_config();
  config.optimizer.sparse_optimizer = sparse::RowRule::kSgd;
  config.steps.clip_grad_norm = 0;
  const Training mean = train_in_shards(config, 2, dhen());
  config.steps.gradient_divide_factor = 1;
  const Training sum = train_in_shards(config, 2, dhen());
  EXPECT_NEAR(sum.grad_norms[0], 2 * mean.grad_norms[0], 1e-5 * sum.grad_norms[0]);
  EXPECT_NE(sum.losses[2], mean.losses[2]);
  config.optimizer.sparse_learning_rate = *config.optimizer.sparse_learning_rate / 2;
  config.optimizer.learning_rate = 0;
  const Training halved = train_in_shards(config, 2, dhen());
  config.optimizer.sparse_learning_rate = *config.optimizer.sparse_learning_rate * 2;
  config.steps.gradient_divide_factor.reset();
  const Training rows_of_mean = train_in_shards(config, 2, dhen());
  const at::Tensor &got = halved.weights.at("embedding.weight"), &want = rows_of_mean.weights.at("embedding.weight");
  EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-6));
}

// Uses SGD, because Adagrad ignores a factor of the gradient.
Config low_precision(const char* dtype) {
  Config config = tabular_config();
  config.precision.dtype = from_config_name<c10::ScalarType>(dtype);
  config.optimizer.sparse_optimizer = sparse::RowRule::kSgd;
  config.optimizer.sparse_learning_rate = 0.2;
  return config;
}

struct Precision {
  const char* dtype;
  double norm_tolerance, row_tolerance;  // relative; row_tolerance: to the distance that rows move
};

class LowPrecision : public ::testing::TestWithParam<Precision> {};

TEST_P(LowPrecision, StaysNearFp32) {
  Config config = low_precision(GetParam().dtype);
  if (uses_fp16(config.precision)) config.precision.fp16_init_scale = 4096;
  const Training got = train_in_shards(config, 2, dhen()), want = train_plainly(config, 2, dhen());
  for (size_t step = 0; step < want.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step], want.losses[step], 0.03) << step;
    EXPECT_NEAR(got.grad_norms[step], want.grad_norms[step], GetParam().norm_tolerance * want.grad_norms[step]) << step;
    EXPECT_FALSE(got.steps[step].skipped);
  }
  const at::Tensor initial = models::WholeEmbedding(models::EmbeddingTables{{4, 7, 2}, 8, 0}, at::kFloat)->weight;
  const at::Tensor moved = want.weights.at("embedding.weight") - initial;
  const at::Tensor off = got.weights.at("embedding.weight") - want.weights.at("embedding.weight");
  EXPECT_LT(off.norm().item<double>(), GetParam().row_tolerance * moved.norm().item<double>());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LowPrecision,
                         ::testing::Values(Precision{"bf16", 0.25, 0.4}, Precision{"fp16", 0.04, 0.05}),
                         [](const auto& info) { return std::string(info.param.dtype); });

// Each step overflows, so nothing changes, including rows.
TEST(TabularTraining, SkippedStepsLeaveRowsAlone) {
  Config config = low_precision("fp16");
  config.precision.fp16_init_scale = 1e38;
  const Training got = train_in_shards(config, 2, dhen());
  for (const StepResult& step : got.steps) EXPECT_TRUE(step.skipped);
  const at::Tensor initial = models::WholeEmbedding(models::EmbeddingTables{{4, 7, 2}, 8, 0}, at::kFloat)->weight;
  EXPECT_TRUE(at::equal(got.weights.at("embedding.weight"), initial));
}

// ---------------------------------------------------------------- whole runs

class WholeTabularRuns : public ::testing::Test {
 protected:
  // Evaluation has a filler on some ranks: 7 samples over two or three ranks.
  Config config() const {
    Config config = small_run(folder_);
    config.model.path.reset();
    config.model.definition = models::small_dhen();
    config.data.max_seq_length = Config{}.data.max_seq_length;
    config.optimizer.sparse_learning_rate = 0.05;
    config.data.eval_batch_size = 2;
    return config;
  }
  double eval_loss(const Left& left) const {
    return nlohmann::json::parse(left.metrics.at("eval")).at("eval_loss").get<double>();
  }
  std::filesystem::path final_of(const std::string& name) const { return folder_.path(name + "/final"); }
  // Returns the model in the final folder of a run, in one process.
  std::shared_ptr<models::TabularModel> saved(const std::string& name) const {
    auto model = models::load_pretrained<models::TabularModel>(formats::HfFolder(final_of(name)), at::kFloat, at::kCPU);
    auto rows = std::make_shared<sparse::SplitEmbedding>(make_fake_communicator(0, 1), model->tables());
    sparse::load_rows(final_of(name), *rows);
    models::WholeEmbedding whole(model->tables(), at::kFloat);
    whole->weight.set_data(rows->weight().detach().clone());
    model->set_embedding(whole.ptr());
    return model;
  }
  at::Tensor rows_of(const std::string& name) const { return saved(name)->embedding()->parameters().at(0).detach(); }

  testing::TemporaryFolder folder_;
};

TEST_F(WholeTabularRuns, SaveTheModelThatTheyEvaluated) {
  const Config c = config();
  const double loss = eval_loss(run_whole(c, folder_, "run", 3));
  const auto model = saved("run");
  model->eval();
  const auto data = make_trained_model(model, c)->open_dataset(
      {.text = *c.data.eval_dataset, .role = DatasetRole::kEval, .seed = static_cast<uint64_t>(c.steps.seed)});
  const Batch batch = data->batch({0, 1, 2, 3, 4, 5, 6});
  EXPECT_NEAR(model->forward(batch.inputs, batch.categorical, batch.labels).loss.item<double>(), loss, 1e-6);
  const at::Tensor initial = models::WholeEmbedding(model->tables(), at::kFloat)->weight;
  EXPECT_FALSE(at::equal(rows_of("run"), initial));
}

// The result is the same for any number of ranks, and whichever rank draws the weights.
TEST_F(WholeTabularRuns, DoNotDependOnTheRanks) {
  Config c = config();
  c.data.train_batch_size = 6;
  c.output.overwrite_output_dir = true;
  const Left one = run_whole(c, folder_, "one", 1);
  for (const int world_size : {2, 3}) {
    c.data.train_batch_size = 6 / world_size;
    c.sharding.sync_module_states = world_size == 3;
    const Left more = run_whole(c, folder_, "more", world_size);
    EXPECT_NEAR(eval_loss(more), eval_loss(one), 1e-5);
    EXPECT_TRUE(at::allclose(rows_of("more"), rows_of("one"), 1e-4, 1e-6)) << world_size;
  }
}

TEST_F(WholeTabularRuns, MayRecomputeLayers) {
  Config c = config();
  const Left plain = run_whole(c, folder_, "plain", 2);
  c.model.activation_checkpointing = true;
  const Left recomputed = run_whole(c, folder_, "recomputed", 2);
  EXPECT_EQ(recomputed.metrics, plain.metrics);
  EXPECT_TRUE(recomputed.weights == plain.weights);
  EXPECT_TRUE(at::equal(rows_of("recomputed"), rows_of("plain")));
}

// Continues with another number of ranks; the learning rates are 0, so the saved values are the loaded ones.
TEST_F(WholeTabularRuns, ContinueFromAFinalFolder) {
  Config c = config();
  const Left first = run_whole(c, folder_, "first", 2);
  c.model.definition.reset();
  c.model.path = final_of("first");
  c.optimizer.learning_rate = 0;
  c.optimizer.sparse_learning_rate = 0;
  c.output.overwrite_output_dir = true;
  for (const int world_size : {1, 3}) {
    c.sharding.sync_module_states = world_size == 3;
    const Left again = run_whole(c, folder_, "again", world_size);
    EXPECT_NEAR(eval_loss(again), eval_loss(first), 1e-6);
    EXPECT_TRUE(again.weights == first.weights);
    EXPECT_TRUE(at::equal(rows_of("again"), rows_of("first")));
    EXPECT_FALSE(std::filesystem::exists(final_of("again") / "rows-1-of-2.safetensors"));
  }
  std::filesystem::remove(final_of("first") / "rows-1-of-2.safetensors");
  EXPECT_THAT(error_of([&] { run_whole(c, folder_, "lost", 1); }), HasSubstr("rows-1-of-2.safetensors is missing"));
}

TEST_F(WholeTabularRuns, ResumeAsIfNothingHadHappened) {
  for (const bool async : {false, true}) {
    for (const int world_size : {1, 3}) {
      SCOPED_TRACE(c10::str(world_size, " ranks, async_save: ", async));
      Config c = config();
      c.steps.max_steps = 6;
      const Left want = run_whole(c, folder_, "want", world_size);
      c.checkpoints.save_steps = 2;
      c.checkpoints.async_save = async;
      run_whole(c, folder_, "saved", world_size);
      for (const int step : {4, 6}) std::filesystem::remove_all(checkpoint_path(folder_.path("saved"), step));
      c.checkpoints.resume_from_checkpoint = "latest";
      const Left got = run_whole(c, folder_, "saved", world_size);
      EXPECT_EQ(got.metrics, want.metrics);
      EXPECT_TRUE(got.weights == want.weights);
      EXPECT_TRUE(at::equal(rows_of("saved"), rows_of("want")));
      std::filesystem::remove_all(folder_.path("saved"));
      std::filesystem::remove_all(folder_.path("want"));
    }
  }
}

TEST_F(WholeTabularRuns, ResumeOverOtherRanks) {
  Config c = config();
  c.steps.max_steps = 6;
  c.data.train_batch_size = 6;
  const Left want = run_whole(c, folder_, "want", 1);
  c.checkpoints.save_steps = 3;
  c.data.train_batch_size = 3;
  run_whole(c, folder_, "two", 2);
  c.checkpoints.resume_from_checkpoint = checkpoint_path(folder_.path("two"), 3).string();
  c.data.train_batch_size = 2;
  const Left got = run_whole(c, folder_, "three", 3);
  EXPECT_NEAR(eval_loss(got), eval_loss(want), 1e-5);
  EXPECT_TRUE(at::allclose(rows_of("three"), rows_of("want"), 1e-4, 1e-6));
}

TEST_F(WholeTabularRuns, RefuseToResumeWithAnotherOptimizerOfRows) {
  Config c = config();
  c.steps.max_steps = 4;
  c.checkpoints.save_steps = 2;
  run_whole(c, folder_, "saved", 2);
  c.checkpoints.resume_from_checkpoint = checkpoint_path(folder_.path("saved"), 2).string();
  c.optimizer.sparse_optimizer = sparse::RowRule::kSgd;
  EXPECT_THAT(error_of([&] { run_whole(c, folder_, "other", 2); }),
              AllOf(HasSubstr("embedding.table.0"), HasSubstr("squares")));
}

TEST_F(WholeTabularRuns, TakeModelsThatNoMachineHolds) {
  Config c = config();
  c.model.definition = "dhen-550m";
  EXPECT_EQ(open_training_inputs(c, 8).train->sample_text(), "512 numbers and 255 categories");
}

// ---------------------------------------------------------------- keys

std::unique_ptr<TrainedModel> trained(const Config& config = {}) {
  return make_trained_model(make_tiny_model(models::small_dhen(), 5), config);
}

TEST(TabularTraining, KeysThatDoNotFitAreRefused) {
  const auto error = [](const std::function<void(Config&)>& change) {
    Config config;
    change(config);
    return error_of([&] { trained(config); });
  };
  EXPECT_EQ(error([](Config& c) { c.optimizer.sparse_learning_rate = 0.1; }), "no error");
  EXPECT_THAT(error([](Config& c) { c.data.max_target_length = 4; }),
              HasSubstr("model of tabular data; accepted: null"));
  EXPECT_THAT(error([](Config& c) { c.data.image_size = 4; }), HasSubstr("\"image_size\": 4"));
  EXPECT_THAT(error([](Config& c) { c.data.max_seq_length = 4; }), HasSubstr("leave it at 1024"));
  EXPECT_THAT(error([](Config& c) { c.model.fused_loss = true; }), HasSubstr("leave it at false"));
  for (const auto& model : {models::small_gpt2(), models::small_t5(), models::small_regnet()}) {
    const auto other = [&](const std::function<void(Config&)>& change) {
      Config config;
      if (model["model_type"] == "gpt2") config.data.max_seq_length = 8;
      change(config);
      return error_of([&] { make_trained_model(make_tiny_model(model, 5), config); });
    };
    EXPECT_THAT(other([](Config& c) { c.optimizer.sparse_learning_rate = 0.5; }),
                AllOf(HasSubstr("\"sparse_learning_rate\": 0.5"), HasSubstr("accepted: null")));
    EXPECT_THAT(other([](Config& c) { c.optimizer.sparse_optimizer = sparse::RowRule::kSgd; }),
                AllOf(HasSubstr("\"sparse_optimizer\": \"sgd\""), HasSubstr("row_wise_adagrad")));
  }
}

// ---------------------------------------------------------------- data

class TabularFiles : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, at::Tensor>;

  static Tensors good() {
    return {{"numeric", at::arange(6, at::kDouble).view({2, 3})},
            {"categorical", at::tensor({3, 6, 1, 0, 0, 0}, at::kInt).view({2, 3})},
            {"labels", at::tensor({1, 0}, at::kByte)}};
  }
  std::string write(const Tensors& tensors) const {
    std::vector<formats::TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) infos.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    const std::string path = folder_.path("table.safetensors");
    formats::SafetensorsWriter writer(path, infos);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
    return path;
  }
  std::string error(const std::string& name, const at::Tensor& tensor) const {
    Tensors tensors = good();
    tensors[name] = tensor;
    return error_of([&] { dhen_->open_dataset({.text = write(tensors)}); });
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<TrainedModel> dhen_ = trained();  // 3 numbers, tables of 4, 7 and 2 rows
};

TEST_F(TabularFiles, AreRead) {
  const auto data = dhen_->open_dataset({.text = write(good())});
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->sample_text(), "3 numbers and 3 categories");
  const Batch batch = data->batch({1, 0}).to(at::kCPU);
  EXPECT_TRUE(at::equal(batch.inputs, at::tensor({3, 4, 5, 0, 1, 2}, at::kFloat).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.categorical, at::tensor({0, 0, 0, 3, 6, 1}, at::kLong).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.labels, at::tensor({0, 1}, at::kLong)));
  EXPECT_EQ(dhen_->sample_work(batch).tokens, 0);
  EXPECT_GT(dhen_->sample_work(batch).flops, 0);
}

TEST_F(TabularFiles, AMisfitIsNamed) {
  EXPECT_THAT(error("numeric", at::zeros({2, 4})), AllOf(HasSubstr("table.safetensors: tensor \"numeric\" is [2, 4]"),
                                                         HasSubstr("[N, 3] with N > 0, of floating point")));
  EXPECT_THAT(error("numeric", at::zeros({2, 3}, at::kLong)), HasSubstr("of floating point"));
  EXPECT_THAT(error("numeric", at::tensor({0., 0., 0., 0., NAN, 0.}).view({2, 3})),
              AllOf(HasSubstr("feature 1 of sample 1 is nan"), HasSubstr("must be finite")));
  EXPECT_THAT(error("numeric", at::full({2, 3}, 1e300, at::kDouble)), HasSubstr("feature 0 of sample 0 is 1e+300"));
  EXPECT_THAT(error("categorical", at::zeros({2, 2}, at::kLong)), HasSubstr("[N, 3] with N > 0, of integers"));
  EXPECT_THAT(error("categorical", at::zeros({2, 3})), HasSubstr("of integers"));
  EXPECT_THAT(error("categorical", at::tensor({3, 6, 1, 3, 7, 1}).view({2, 3})),
              AllOf(HasSubstr("id 7 of feature 1 of sample 1"), HasSubstr("from 0 to 6")));
  EXPECT_THAT(error("categorical", at::tensor({3, 6, -1, 3, 6, 1}).view({2, 3})), HasSubstr("id -1 of feature 2"));
  EXPECT_THAT(error("categorical", at::zeros({3, 3}, at::kLong)), HasSubstr("as many as \"numeric\", 2"));
  EXPECT_THAT(error("labels", at::tensor({0, 2})), HasSubstr("label 2 of sample 1"));
  EXPECT_THAT(error("labels", at::tensor({0.0, 1.0})), HasSubstr("[2], of integers"));
  for (const char* name : {"numeric", "categorical", "labels"}) {
    Tensors tensors = good();
    tensors.erase(name);
    EXPECT_THAT(error_of([&] { dhen_->open_dataset({.text = write(tensors)}); }),
                HasSubstr(std::string("has no tensor \"") + name + "\""));
  }
  EXPECT_THAT(error_of([&] { dhen_->open_dataset({.text = folder_.write("text", "no tensors")}); }), HasSubstr("text"));
}

TEST(DummyTables, FillEveryTable) {
  const auto data = trained()->open_dataset({.text = "dummy:300"});
  std::vector<int64_t> all(300);
  std::iota(all.begin(), all.end(), 0);
  const Batch batch = data->batch(all);
  EXPECT_NEAR(batch.inputs.mean().item<double>(), 0.5, 0.05);
  EXPECT_NEAR(batch.labels.to(at::kFloat).mean().item<double>(), 0.5, 0.1);
  EXPECT_TRUE(at::equal(batch.categorical.amax(0), at::tensor({3, 6, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(data->batch({150}).categorical, batch.categorical.narrow(0, 150, 1)));
}

}  // namespace
}  // namespace fsdp::trainer::trained_tabular_model_test
