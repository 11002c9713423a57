// Tests that causal language models of every family train in a pipeline of sharded stages as in one process.
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "fsdp/pipeline.h"
#include "models/decoder/decoder.h"
#include "models/gpt2.h"
#include "models/staged_lm.h"
#include "models/testing/small_models.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"

namespace fsdp::pipeline_models_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
using models::CausalLM;
using models::SmallModel;
using models::StageBatch;
using models::StagedLM;
using models::StagePart;

constexpr int kSteps = 3;
constexpr int kMicroBatches = 4;
constexpr int64_t kBlocks = 4;

using Ranks = std::shared_ptr<Communicator>;

// Longer than the windows. Micro-batches differ in length.
torch::Tensor tokens_of(int step, int micro_batch, int data_rank) {
  const int64_t length = 8 + micro_batch;
  return (torch::arange(2 * length) * (3 + data_rank + 5 * step + 2 * micro_batch) % 31).view({2, length});
}

StageBatch batch_of(int step, int micro_batch, int data_rank) {
  const torch::Tensor ids = tokens_of(step, micro_batch, data_rank);
  return {ids, ids, 1.0 / kMicroBatches};
}

// Tied weights are trained in double precision, because their gradients are added up in another order.
std::shared_ptr<CausalLM> make(const SmallModel& small, bool tied) {
  const at::ScalarType dtype = tied ? torch::kFloat64 : torch::kFloat32;
  auto model = models::make_causal_lm(models::config_of_stages(small, kBlocks, tied), dtype, torch::kCPU);
  model->initialize();
  return model;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, torch::Tensor> weights;
};

Trained train_alone(const SmallModel& small, bool tied) {
  const auto model = seeded([&] { return make(small, tied); });
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    for (int i = 0; i < kMicroBatches; ++i) {
      const StageBatch batch = batch_of(step, i, 0);
      const torch::Tensor loss = model->forward(batch.input_ids, batch.labels).loss * batch.loss_weight;
      loss.backward();
      result.losses.push_back(loss.item<double>());
    }
    descend(model->parameters());
  }
  result.weights = weights_of(*model);
  return result;
}

Options options_of(DeviceMesh& mesh) {
  Options options;
  options.mesh = mesh.data_parallel();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.auto_wrap_policy =
      module_class_policy<models::DecoderLayerImpl, models::GPT2BlockImpl, models::EmbeddingImpl>();
  return options;
}

// Draws all values at once, because the ranks share torch's generator.
std::shared_ptr<CausalLM> make_part(const SmallModel& small, bool tied, const StagePart& part) {
  auto model = deferred_init([&] { return make(small, tied); });
  models::staged_lm(*model).keep(part);
  materialize(*model);
  return model;
}

// Of the stages that one rank holds.
Trained train_in_stages(const Ranks& world, const PipelineSchedule& schedule, const SmallModel& small, bool tied) {
  DeviceMesh mesh = DeviceMesh::make(world, {{"pp", schedule.ranks()}, {"dp_shard", -1}});
  const std::vector<StagePart> parts = models::stage_parts(kBlocks, schedule.stages());
  int step = 0;
  std::vector<std::shared_ptr<CausalLM>> kept;
  std::vector<PipelineStage> stages;
  std::string tied_parameter;
  for (int index = 0; index < schedule.stages(); ++index) {
    if (schedule.rank_of_stage[static_cast<size_t>(index)] != mesh.rank("pp")) continue;
    const StagePart& part = parts[static_cast<size_t>(index)];
    kept.push_back(seeded([&] { return make_part(small, tied, part); }));
    StagedLM& staged = models::staged_lm(*kept.back());
    tied_parameter = staged.tied_parameter();
    const auto batch = [&step, data_rank = mesh.rank("dp_shard")](int i) { return batch_of(step, i, data_rank); };
    stages.push_back({index, fully_shard(*kept.back(), options_of(mesh)), models::stage_forward(staged, part, batch)});
  }
  PipelineOptions options;
  if (!tied_parameter.empty()) options.tied_parameters = {tied_parameter};
  Pipeline pipeline(mesh, schedule, stages, options);
  Trained result;
  for (; step < kSteps; ++step) {
    for (const PipelineStage& stage : stages) stage.sharded->zero_grad();
    for (const auto& outputs : pipeline.step()) result.losses.push_back(outputs.front().item<double>());
    for (const PipelineStage& stage : stages) descend(stage.sharded->parameters());
  }
  for (const PipelineStage& stage : stages) result.weights.merge(weights_of(*stage.sharded));
  return result;
}

class PipelineOfModels : public ::testing::TestWithParam<SmallModel> {};
INSTANTIATE_TEST_SUITE_P(All, PipelineOfModels, ::testing::ValuesIn(models::small_models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PipelineOfModels, TrainsAsOneProcessToTheBit) {
  const Trained alone = train_alone(GetParam(), /*tied=*/false);
  for (const auto& [name, ranks, stages_per_rank] :
       {std::tuple{"1F1B", 2, 1}, {"GPipe", 4, 1}, {"Interleaved1F1B", 2, 3}}) {
    const PipelineSchedule schedule = make_pipeline_schedule(name, ranks, stages_per_rank, kMicroBatches);
    run_ranks(ranks, [&, name = name](Ranks world) {
      const Trained staged = train_in_stages(world, schedule, GetParam(), /*tied=*/false);
      if (!staged.losses.empty()) {
        EXPECT_EQ(staged.losses, alone.losses) << name;
      }
      EXPECT_FALSE(staged.weights.empty());
      for (const auto& [fqn, weight] : staged.weights) {
        EXPECT_TRUE(torch::equal(weight, alone.weights.at(fqn))) << name << ": " << fqn;
      }
    });
  }
}

TEST_P(PipelineOfModels, WithTiedEmbeddingsTrainsAsOneProcess) {
  const Trained alone = train_alone(GetParam(), /*tied=*/true);
  const PipelineSchedule schedule = make_pipeline_schedule("1F1B", 2, 1, kMicroBatches);
  run_ranks(2, [&](Ranks world) {
    const Trained staged = train_in_stages(world, schedule, GetParam(), /*tied=*/true);
    for (size_t i = 0; i < staged.losses.size(); ++i) EXPECT_NEAR(staged.losses[i], alone.losses[i], 1e-12);
    for (const auto& [fqn, weight] : staged.weights) {
      const double difference = (weight - alone.weights.at(fqn)).norm().item<double>();
      EXPECT_LE(difference, 1e-12) << fqn;
    }
    const torch::Tensor embedding = staged.weights.at(GetParam().embedding).contiguous();
    const std::string bytes(static_cast<const char*>(embedding.const_data_ptr()), embedding.nbytes());
    EXPECT_THAT(world->all_gather_bytes(bytes, {"embeddings", 0, Pass::kUser}), ::testing::Each(bytes));
  });
}

}  // namespace
}  // namespace fsdp::pipeline_models_test
