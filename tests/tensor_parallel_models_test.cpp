// Tests that causal language models of every family train as in one process while their weights are split over ranks:
// alone, under FSDP, and in the stages of a pipeline.
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "fsdp/pipeline.h"
#include "fsdp/pipeline_state.h"
#include "models/staged_lm.h"
#include "models/testing/small_models.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::tensor_parallel_models_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using models::CausalLM;
using models::SmallModel;
using models::StageBatch;
using models::StagedLM;
using models::StagePart;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, torch::Tensor>;

constexpr int kSteps = 3;
constexpr int kMicroBatches = 2;
constexpr int64_t kBlocks = 2;

// Longer than the windows, and even, as sequence parallelism over two ranks needs it.
StageBatch batch_of(int step, int micro_batch, int data_rank) {
  const int64_t length = 6 + 2 * micro_batch;
  const torch::Tensor ids =
      (torch::arange(2 * length) * (3 + data_rank + 5 * step + 2 * micro_batch) % 31).view({2, length});
  return {ids, ids, 1.0 / kMicroBatches};
}

std::shared_ptr<CausalLM> make(const SmallModel& small, bool tied) {
  return seeded([&] {
    auto model = models::make_causal_lm(models::config_of_stages(small, kBlocks, tied), torch::kFloat64, torch::kCPU);
    model->initialize();
    return model;
  });
}

struct Trained {
  std::vector<double> losses;
  Weights weights;
  Weights state_dict;  // of all stages
};

// On the batches of `data_ranks` ranks.
Trained train_alone(const SmallModel& small, bool tied, int data_ranks) {
  const auto model = make(small, tied);
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    double sum = 0;
    for (int i = 0; i < kMicroBatches * data_ranks; ++i) {
      const StageBatch batch = batch_of(step, i % kMicroBatches, i / kMicroBatches);
      const torch::Tensor loss = model->forward(batch.input_ids, batch.labels).loss * batch.loss_weight / data_ranks;
      loss.backward();
      sum += loss.item<double>();
    }
    result.losses.push_back(sum);
    descend(model->parameters());
  }
  result.weights = weights_of(*model);
  return result;
}

// Whether ranks have parts of the classes and of the positions, too. Positions only with classes.
struct Parts {
  bool classes = true, positions = false;
};

Options split(DeviceMesh& mesh, CausalLM& model, const Parts& parts) {
  Options options;
  options.mesh = mesh.data_parallel();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.auto_wrap_policy = [&model](const WrapCandidate& candidate) {
    const std::vector<std::string> blocks = model.block_class_names();
    const std::string name = module_class_name(candidate.module);
    return name == "Embedding" || std::find(blocks.begin(), blocks.end(), name) != blocks.end();
  };
  if (parts.classes) {
    options.tensor_parallel = model.split_over(mesh.group("tp"), parts.positions);
  } else {
    options.tensor_parallel = {mesh.group("tp"), model.tensor_parallel_plan()};
  }
  return options;
}

void add_weights(ShardedModule& sharded, Weights& to) {
  sharded.for_each_full_parameter([&](const std::string& fqn, const torch::Tensor& full) { to[fqn] = full.clone(); });
}

Trained train_split(DeviceMesh& mesh, const SmallModel& small, bool tied, const Parts& parts) {
  const auto model = make(small, tied);
  const auto sharded = fully_shard(*model, split(mesh, *model, parts));
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    double sum = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      const StageBatch batch = batch_of(step, i, mesh.rank("dp_shard"));
      const torch::Tensor loss = model->forward(batch.input_ids, batch.labels).loss * batch.loss_weight;
      loss.backward();
      sum += loss.item<double>();
    }
    result.losses.push_back(sum);
    descend(sharded->parameters());
  }
  add_weights(*sharded, result.weights);
  return result;
}

Trained train_split_in_stages(DeviceMesh& mesh, const SmallModel& small, bool tied, const Parts& parts) {
  const PipelineSchedule schedule = make_pipeline_schedule("1F1B", mesh.size("pp"), 1, kMicroBatches);
  const int index = mesh.rank("pp");
  const StagePart part = models::stage_parts(kBlocks, schedule.stages())[static_cast<size_t>(index)];
  const auto model = make(small, tied);
  StagedLM& staged = models::staged_lm(*model);
  staged.keep(part);
  int step = 0;
  const auto batch = [&](int i) { return batch_of(step, i, mesh.rank("dp_shard")); };
  const auto sharded = fully_shard(*model, split(mesh, *model, parts));
  PipelineOptions options;
  if (tied) options.tied_parameters = {staged.tied_parameter()};
  Pipeline pipeline(mesh, schedule, {{index, sharded, models::stage_forward(staged, part, batch)}}, options);
  Trained result;
  for (; step < kSteps; ++step) {
    sharded->zero_grad();
    pipeline.step();
    descend(sharded->parameters());
  }
  add_weights(*sharded, result.weights);
  const PipelinedModel whole{mesh, {{index, *sharded, *model}}, options.tied_parameters};
  result.state_dict = full_state_dict(whole, {.rank0_only = false});
  return result;
}

void expect_weights(const Weights& got, const Weights& want, const std::string& what) {
  EXPECT_FALSE(got.empty());
  for (const auto& [fqn, weight] : got) {
    const double difference = (weight - want.at(fqn)).abs().max().item<double>();
    EXPECT_LE(difference, 1e-12 * want.at(fqn).abs().max().item<double>()) << what << ": " << fqn;
  }
}

// Whether the model must be told which of its heads a rank has (CausalLM::split_over), because they differ.
bool knows_its_rank(const SmallModel& small) { return small.name == "mpt"; }

class SplitModels : public ::testing::TestWithParam<SmallModel> {};
INSTANTIATE_TEST_SUITE_P(All, SplitModels, ::testing::ValuesIn(models::small_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SplitModels, TrainAsInOneProcess) {
  for (const auto& [data, tied, parts] : {std::tuple{1, false, Parts{true, false}},
                                          {1, true, {false, false}},
                                          {2, true, {true, false}},
                                          {1, false, {true, true}},
                                          {2, true, {true, true}}}) {
    if (knows_its_rank(GetParam()) && !parts.classes) continue;
    const Trained alone = train_alone(GetParam(), tied, data);
    run_ranks(2 * data, [&, data = data, tied = tied, parts = parts](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", data}, {"tp", 2}});
      const Trained split = train_split(mesh, GetParam(), tied, parts);
      if (data == 1) {
        for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(split.losses[step], alone.losses[step], 1e-11);
      }
      EXPECT_EQ(split.weights.size(), alone.weights.size());
      expect_weights(split.weights, alone.weights,
                     c10::str(data, tied ? ", tied" : "", parts.positions ? ", positions" : ""));
    });
  }
}

TEST_P(SplitModels, TrainInStagesAsInOneProcess) {
  for (const bool tied : {false, true}) {
    const Trained alone = train_alone(GetParam(), tied, /*data_ranks=*/1);
    run_ranks(4, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"tp", 2}});
      const Trained split = train_split_in_stages(mesh, GetParam(), tied, {true, /*positions=*/tied});
      expect_weights(split.weights, alone.weights, tied ? "tied" : "");
      EXPECT_EQ(split.state_dict.size(), alone.weights.size());
      expect_weights(split.state_dict, alone.weights, tied ? "state dict, tied" : "state dict");
    });
  }
}

TEST_P(SplitModels, GiveAllLogits) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor ids = batch_of(0, 0, 0).input_ids;
  const int64_t end = ids[0][1].item<int64_t>();  // of a document
  const auto alone = make(GetParam(), /*tied=*/true);
  const torch::Tensor expected = alone->forward(ids).logits;
  alone->attend_by_document({end});
  const torch::Tensor by_document = alone->forward(ids).logits;
  EXPECT_FALSE(by_document.allclose(expected, 1e-6, 1e-6));
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    for (const Parts& parts : {Parts{false, false}, {true, false}, {true, true}}) {
      if (knows_its_rank(GetParam()) && !parts.classes) continue;
      const auto model = make(GetParam(), /*tied=*/true);
      const auto sharded = fully_shard(*model, split(mesh, *model, parts));
      const std::string what = c10::str(parts.classes, parts.positions);
      EXPECT_TRUE(model->forward(ids).logits.allclose(expected, 1e-12, 1e-12)) << what;
      model->attend_by_document({end});
      EXPECT_TRUE(model->forward(ids).logits.allclose(by_document, 1e-12, 1e-12)) << what << ", by document";
    }
  });
}

TEST(SplitMpt, MustKnowItsRank) {
  const auto models = models::small_models();
  const SmallModel mpt = *std::find_if(models.begin(), models.end(), knows_its_rank);
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"tp", 2}});
    const auto model = make(mpt, /*tied=*/true);
    const auto sharded = fully_shard(*model, split(mesh, *model, {.classes = false}));
    EXPECT_THAT(error_of([&] { model->forward(batch_of(0, 0, 0).input_ids); }), ::testing::HasSubstr("split_over"));
  });
}

TEST_P(SplitModels, ThatDrawRandomNumbersAreRefused) {
  nlohmann::json config = models::config_of_stages(GetParam(), kBlocks, false);
  models::set_dropout(config, GetParam().dropout_keys.front(), 0.1);
  const auto model = models::make_causal_lm(config, torch::kFloat32, torch::kMeta);
  EXPECT_THAT(error_of([&] { model->tensor_parallel_plan(); }),
              ::testing::HasSubstr("tensor parallelism: " + config.at("model_type").get<std::string>() +
                                   " draws random numbers in forward"));
}

}  // namespace
}  // namespace fsdp::tensor_parallel_models_test
