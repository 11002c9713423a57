// Tests that stages train as one process does, with every schedule; their gathers, graphs and messages.
#include "fsdp/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "pipeline/testing/stages.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::pipeline_test {
namespace {

using testing::Blocks;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::expect_equal;
using testing::kBlocks;
using testing::kSteps;
using testing::loss_of;
using testing::make_optimizer;
using testing::options_of;
using testing::Ranks;
using testing::run_ranks;
using testing::samples;
using testing::StagesOfRank;
using testing::train_sharded;
using testing::Training;
using testing::TwoStages;
using enum ShardingStrategy;

// Trains the whole model in plain LibTorch.
Training train_alone(int micro_batches) {
  Blocks model(0, kBlocks);
  auto optimizer = make_optimizer(model.parameters());
  Training result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor loss = loss_of(model.forward(samples(step, i).to(at::kFloat)), micro_batches);
      loss.backward();
      result.losses.push_back(loss.item<float>());
    }
    optimizer.step();
  }
  for (const auto& parameter : model.named_parameters()) result.weights[parameter.key()] = parameter.value().detach();
  return result;
}

struct Order {
  std::string schedule;
  int ranks;
  int stages_per_rank;

  // Whether gradients of weights and of biases are added up in different passes.
  bool parts_gradients() const { return schedule.ends_with("ZeroBubble"); }
};
const std::vector<Order> kOrders{{"GPipe", 1, 1},
                                 {"1F1B", 1, 1},
                                 {"GPipe", 2, 1},
                                 {"1F1B", 2, 1},
                                 {"1F1B", 3, 1},
                                 {"1F1B", 4, 1},
                                 {"GPipe", 4, 1},
                                 {"Interleaved1F1B", 1, 3},
                                 {"Interleaved1F1B", 2, 2},
                                 {"Interleaved1F1B", 2, 3},
                                 {"InterleavedZeroBubble", 1, 1},
                                 {"InterleavedZeroBubble", 2, 1},
                                 {"InterleavedZeroBubble", 4, 1},
                                 {"InterleavedZeroBubble", 2, 2},
                                 {"ZBVZeroBubble", 1, 2},
                                 {"ZBVZeroBubble", 2, 2},
                                 {"ZBVZeroBubble", 3, 2}};

TEST(Pipelines, TrainAsOneProcessToTheBit) {
  for (const int micro_batches : {1, 2, 4}) {
    const Training alone = train_alone(micro_batches);
    for (const Order& order : kOrders) {
      for (const ShardingStrategy strategy : {kShardGradOp, kFullShard}) {
        for (const bool sync : {false, true}) {
          run_ranks(order.ranks, [&](Ranks world) {
            const auto schedule =
                make_pipeline_schedule(order.schedule, order.ranks, order.stages_per_rank, micro_batches);
            StagesOfRank stages(world, schedule, strategy, {.sync_each_micro_batch = sync});
            const std::string what = c10::str(order.schedule, ", ", order.ranks, " ranks, ", micro_batches,
                                              " micro-batches, ", to_string(strategy), ", sync ", sync);
            const Training pipelined = stages.train();
            EXPECT_EQ(pipelined.losses.empty(), schedule.rank_of_stage.back() != world->rank()) << what;
            if (sync && order.parts_gradients()) {
              expect_close(pipelined, alone, what);  // a reduction may take the biases' gradients of several passes
            } else {
              expect_equal(pipelined, alone, what);
            }
          });
        }
      }
    }
  }
}

TEST(Pipelines, OverDataParallelRanksTrainAsTheseAloneToTheBit) {
  constexpr int kMicroBatches = 4;
  for (const ShardingStrategy strategy : {kShardGradOp, kFullShard}) {
    std::vector<Training> alone(2);
    run_ranks(2, [&](Ranks world) {
      alone[static_cast<size_t>(world->rank())] = train_sharded(world, kMicroBatches, options_of({}, strategy));
    });
    for (const Order& order : {Order{"GPipe", 2, 1}, Order{"1F1B", 2, 1}, Order{"Interleaved1F1B", 2, 2},
                               Order{"InterleavedZeroBubble", 2, 1}, Order{"ZBVZeroBubble", 2, 2}}) {
      run_ranks(4, [&](Ranks world) {
        const auto schedule = make_pipeline_schedule(order.schedule, order.ranks, order.stages_per_rank, kMicroBatches);
        StagesOfRank stages(world, schedule, strategy);
        const Training pipelined = stages.train();
        expect_equal(pipelined, alone[static_cast<size_t>(stages.mesh().rank("dp_shard"))], order.schedule);
      });
    }
  }
}

TEST(Pipelines, GatherOnceAStepWithShardGradOp) {
  for (const int micro_batches : {1, 4, 16}) {
    run_ranks(4, [&](Ranks world) {
      const auto schedule = make_pipeline_schedule("1F1B", 2, 1, micro_batches);
      StagesOfRank stages(world, schedule, kShardGradOp);
      stages.train();
      const EngineStats stats = stages.sharded(0).diagnostics().stats();
      EXPECT_EQ(stats.units, kBlocks / 2);
      EXPECT_EQ(stats.all_gathers, stats.units * kSteps);
      EXPECT_EQ(stats.reduce_scatters, stats.units * kSteps);
    });
  }
}

// The passes for weight gradients alone use no parameters.
TEST(Pipelines, GatherNothingForTheGradientsOfWeights) {
  std::vector<uint64_t> gathers;
  for (const char* order : {"0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n",
                            "0F0,0F1,0F2,0I0,0I1,0I2,0W0,0W1,0W2\n1F0,1F1,1F2,1I0,1I1,1I2,1W0,1W1,1W2\n"}) {
    run_ranks(4, [&](Ranks world) {
      std::istringstream csv(order);
      const PipelineSchedule schedule = read_pipeline_csv(csv, "order.csv");
      StagesOfRank stages(world, schedule, kFullShard);
      stages.pipeline().step();
      const EngineStats stats = stages.sharded(0).diagnostics().stats();
      EXPECT_EQ(stats.reduce_scatters, stats.units);
      if (world->rank() == 3) gathers.push_back(stats.all_gathers);
    });
  }
  EXPECT_EQ(gathers.at(0), gathers.at(1));
}

TEST(Pipelines, KeepAsManyGraphsAsTheScheduleSays) {
  constexpr int kMicroBatches = 6;
  for (const char* name : {"GPipe", "1F1B"}) {
    run_ranks(3, [&](Ranks world) {
      const auto schedule = make_pipeline_schedule(name, 3, 1, kMicroBatches);
      StagesOfRank stages(world, schedule, kShardGradOp);
      stages.train();
      const int in_flight = std::string(name) == "GPipe" ? kMicroBatches : 3 - world->rank();
      EXPECT_THAT(stages.pipeline().most_in_flight(), ElementsAre(in_flight));
      EXPECT_EQ(stages.pipeline().passes().size(), 2u * kMicroBatches);
      const double bubble = stages.pipeline().bubble();
      EXPECT_GE(bubble, 0);
      EXPECT_LT(bubble, 1);
      EXPECT_THAT(stages.mesh().group("pp")->all_gather_bytes(std::to_string(bubble), {"bubble", 0, Pass::kUser}),
                  Each(std::to_string(bubble)));
    });
  }
}

// The largest number of bytes of some tensors that were alive when another one was made.
class AliveBytes {
 public:
  void add(const at::Tensor& made) {
    made_.emplace_back(made.storage().getWeakStorageImpl());
    size_t alive = 0;
    for (const auto& storage : made_) {
      if (const auto locked = storage.lock()) alive += locked->nbytes();
    }
    peak_ = std::max(peak_, alive);
  }
  size_t peak() const { return peak_; }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
  size_t peak_ = 0;
};

struct HeldActivations {
  const char* schedule;
  std::vector<size_t> graphs;   // of how many micro-batches rank 0 and rank 1 hold at most what a graph has saved
  std::vector<size_t> factors;  // and the inputs of products, which a pass for gradients of weights needs
};

TEST(Pipelines, HoldActivationsAsLongAsTheScheduleSays) {
  constexpr int kMicroBatches = 6;
  constexpr size_t kBytes = 5 * 3 * sizeof(float);  // of one activation
  for (const HeldActivations& held : {HeldActivations{"GPipe", {6, 6}, {6, 6}}, HeldActivations{"1F1B", {2, 1}, {2, 1}},
                                      HeldActivations{"InterleavedZeroBubble", {2, 1}, {2, 2}}}) {
    run_ranks(2, [&](Ranks world) {
      std::optional<TwoStages> stages;
      AliveBytes graphs, factors;
      const auto forward = [&](const at::Tensor& x) {
        const at::Tensor input = x + 1;
        factors.add(input);
        const at::Tensor saved = torch::tanh(stages->linear->forward(input));
        graphs.add(saved);
        return saved * saved;
      };
      using Tensors = std::vector<at::Tensor>;
      stages.emplace(
          world, held.schedule, kMicroBatches,
          [&](const Tensors&, int) -> Tensors { return {forward(torch::ones({5, 3}))}; },
          [&](const Tensors& inputs, int) -> Tensors { return {forward(inputs.at(0)).sum()}; });
      stages->pipeline->step();
      const auto rank = static_cast<size_t>(world->rank());
      EXPECT_EQ(graphs.peak(), held.graphs[rank] * kBytes) << held.schedule << ", rank " << rank;
      EXPECT_EQ(factors.peak(), held.factors[rank] * kBytes) << held.schedule << ", rank " << rank;
    });
  }
}

TEST(Pipelines, SendEachActivationAndEachGradientOnce) {
  constexpr int kMicroBatches = 5;
  constexpr uint64_t kDescription = 128 * 8;
  uint64_t activations = 0;
  for (int i = 0; i < kMicroBatches; ++i) activations += samples(0, i).numel() * sizeof(float);
  run_ranks(3, [&](Ranks world) {
    const auto schedule = make_pipeline_schedule("1F1B", 3, 1, kMicroBatches);
    StagesOfRank stages(world, schedule, kShardGradOp);
    const auto group = stages.mesh().group("pp");
    const std::vector<uint64_t> before = group->bytes_sent_to();
    stages.pipeline().step();
    std::vector<uint64_t> sent = group->bytes_sent_to();
    for (size_t rank = 0; rank < sent.size(); ++rank) sent[rank] -= before[rank];
    const auto rank = static_cast<size_t>(world->rank());
    if (rank < 2) {
      EXPECT_EQ(sent[rank + 1], activations + kMicroBatches * kDescription);
    }
    if (rank > 0) {
      EXPECT_EQ(sent[rank - 1], activations);
    }
  });
}

TEST(Pipelines, ClipByTheNormOfTheWholeModel) {
  constexpr int kMicroBatches = 4;
  Blocks model(0, kBlocks);
  for (int i = 0; i < kMicroBatches; ++i) {
    loss_of(model.forward(samples(0, i).to(at::kFloat)), kMicroBatches).backward();
  }
  for (const double type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : model.parameters()) gradients.push_back(parameter.grad().flatten());
    const double norm = torch::norm(torch::cat(gradients).to(at::kDouble), type).item<double>();
    for (const Order& order : {Order{"1F1B", 3, 1}, Order{"Interleaved1F1B", 2, 2}}) {
      run_ranks(order.ranks, [&](Ranks world) {
        const auto schedule = make_pipeline_schedule(order.schedule, order.ranks, order.stages_per_rank, kMicroBatches);
        StagesOfRank stages(world, schedule, kShardGradOp);
        stages.pipeline().step();
        EXPECT_NEAR(stages.pipeline().clip_grad_norm_(norm / 2, type).item<double>(), norm, 1e-6 * norm);
        EXPECT_NEAR(stages.pipeline().grad_norm(type).item<double>(), norm / 2, 1e-5 * norm);
      });
    }
  }
}

TEST(Pipelines, EvaluateWithoutGradientsAtAnyTime) {
  constexpr int kMicroBatches = 4;
  const Training alone = train_alone(kMicroBatches);
  for (const Order& order : {Order{"1F1B", 3, 1}, Order{"Interleaved1F1B", 2, 2}}) {
    run_ranks(order.ranks, [&](Ranks world) {
      const auto schedule = make_pipeline_schedule(order.schedule, order.ranks, order.stages_per_rank, kMicroBatches);
      StagesOfRank stages(world, schedule, kFullShard);
      const auto before = stages.pipeline().evaluate();
      for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].at(0).item<float>(), alone.losses[i]);
      EXPECT_EQ(before.empty(), schedule.rank_of_stage.back() != world->rank());
      expect_equal(stages.train(), alone, order.schedule);
      stages.pipeline().evaluate();
    });
  }
}

// ---------------------------------------------------------------- tensors between stages

TEST(BetweenStages, SeveralTensorsPassOfWhichSomeHaveNoGradient) {
  run_ranks(2, [](Ranks world) {
    std::optional<TwoStages> stages;
    at::Tensor used, unused;
    stages.emplace(
        world, "1F1B", 2,
        [&](const std::vector<at::Tensor>& inputs, int micro_batch) -> std::vector<at::Tensor> {
          EXPECT_TRUE(inputs.empty());
          used = stages->linear->forward(torch::ones({2, 3})).to(at::kBFloat16);
          unused = stages->linear->forward(torch::ones({1, 3}));
          used.register_hook([](const at::Tensor& gradient) { EXPECT_EQ(gradient.scalar_type(), at::kBFloat16); });
          unused.register_hook([](const at::Tensor& gradient) { EXPECT_EQ(gradient.abs().sum().item<float>(), 0); });
          return {used, torch::full({4}, micro_batch, at::kLong), unused, torch::zeros({0, 5}), torch::full({}, 2.5)};
        },
        [&](const std::vector<at::Tensor>& inputs, int micro_batch) -> std::vector<at::Tensor> {
          EXPECT_EQ(inputs.size(), 5u);
          EXPECT_EQ(inputs.at(0).scalar_type(), at::kBFloat16);
          EXPECT_TRUE(inputs.at(0).requires_grad());
          EXPECT_TRUE(torch::equal(inputs.at(1), torch::full({4}, micro_batch, at::kLong)));
          EXPECT_TRUE(inputs.at(2).requires_grad());
          EXPECT_EQ(inputs.at(3).sizes(), at::IntArrayRef({0, 5}));
          EXPECT_FALSE(inputs.at(3).requires_grad());
          EXPECT_EQ(inputs.at(4).item<float>(), 2.5f);
          const at::Tensor hidden = stages->linear->forward(inputs.at(0).to(at::kFloat));
          return {hidden.sum(), hidden, inputs.at(1)};
        });
    const auto outputs = stages->pipeline->step();
    EXPECT_EQ(outputs.size(), world->rank() == 1 ? 2u : 0u);
    for (const auto& one : outputs) {
      EXPECT_EQ(one.size(), 3u);
      EXPECT_FALSE(one.at(1).requires_grad());
    }
    for (const at::Tensor& leaf : stages->sharded->parameters()) EXPECT_TRUE(leaf.grad().defined());
  });
}

TEST(BetweenStages, AFirstStageThatDoesNotTrainGetsNoGradients) {
  run_ranks(2, [](Ranks world) {
    std::optional<TwoStages> stages;
    stages.emplace(
        world, "GPipe", 3,
        [&](const std::vector<at::Tensor>&, int) -> std::vector<at::Tensor> {
          return {stages->linear->forward(torch::ones({2, 3}))};
        },
        [&](const std::vector<at::Tensor>& inputs, int) -> std::vector<at::Tensor> {
          EXPECT_FALSE(inputs.at(0).requires_grad());
          return {stages->linear->forward(inputs.at(0)).sum()};
        });
    if (world->rank() == 0) {
      for (const at::Tensor& parameter : stages->module.parameters())
        stages->sharded->set_requires_grad(parameter, false);
    }
    const auto group = stages->mesh.group("pp");
    const uint64_t before = group->bytes_sent();
    stages->pipeline->step();
    if (world->rank() == 1) {
      EXPECT_EQ(group->bytes_sent(), before);
    }
    for (const at::Tensor& leaf : stages->sharded->parameters()) EXPECT_EQ(leaf.grad().defined(), world->rank() == 1);
  });
}

}  // namespace
}  // namespace fsdp::pipeline::pipeline_test
