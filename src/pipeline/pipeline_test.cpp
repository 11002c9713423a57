// Tests that stages train as one process does, with every schedule; their gathers, graphs and messages; and errors.
#include "fsdp/pipeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/fully_shard.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::pipeline_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::run_ranks;
using enum ShardingStrategy;

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kWidth = 7;
constexpr int kBlocks = 12;
constexpr int kSteps = 3;

// The blocks [begin, end) of a model with `kBlocks` of them, with the initial values and names of the whole model.
struct Blocks : torch::nn::Module {
  Blocks(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      linear.push_back(register_module("block" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
      const at::NoGradGuard no_grad;
      linear.back()->weight.copy_(torch::sin(torch::arange(kWidth * kWidth) * (0.7 + 0.1 * i)).view({kWidth, kWidth}) /
                                  kWidth);
      linear.back()->bias.copy_(torch::cos(torch::arange(kWidth) + i));
    }
  }
  at::Tensor forward(at::Tensor hidden) {
    for (auto& block : linear) hidden = hidden + torch::tanh(block->forward(hidden));
    return hidden;
  }
  std::vector<torch::nn::Linear> linear;
};

// Samples of one micro-batch of a data-parallel rank. Their number differs, as with sequences of several lengths.
at::Tensor samples(int step, int micro_batch, int data_rank = 0) {
  const int rows = 2 + micro_batch % 3;
  return ((torch::arange(rows * kWidth) * (step + 3) + 5 * micro_batch + 11 * data_rank) % 13).view({rows, kWidth}) /
         13.0;
}

at::Tensor loss_of(const at::Tensor& hidden, int micro_batches) { return (hidden * hidden).mean() / micro_batches; }

struct Training {
  std::vector<float> losses;
  Weights weights;
};

torch::optim::AdamW make_optimizer(std::vector<at::Tensor> parameters) {
  return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions(0.01));
}

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

void add_weights(ShardedModule& sharded, Weights& weights) {
  sharded.for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) { weights[fqn] = full.clone(); });
}

Options options_of(const std::shared_ptr<Communicator>& group, ShardingStrategy strategy) {
  Options options;
  options.communicator = group;
  options.sharding_strategy = strategy;
  options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
  return options;
}

// A rank's stages of the model, and their training.
class StagesOfRank {
 public:
  StagesOfRank(const Ranks& world, const PipelineSchedule& schedule, ShardingStrategy strategy,
               const PipelineOptions& options = {})
      : mesh_(DeviceMesh::make(world, {{"pp", schedule.ranks()}, {"dp_shard", -1}})) {
    const auto group = mesh_.data_parallel().world;
    std::vector<PipelineStage> stages;
    for (int index = 0; index < schedule.stages(); ++index) {
      if (schedule.rank_of_stage[static_cast<size_t>(index)] != mesh_.rank("pp")) continue;
      auto blocks =
          std::make_shared<Blocks>(kBlocks * index / schedule.stages(), kBlocks * (index + 1) / schedule.stages());
      auto sharded = fully_shard(*blocks, options_of(group, strategy));
      stages.push_back({index, sharded, [this, blocks, index, &schedule](const auto& inputs, int micro_batch) {
                          return forward(*blocks, index, schedule, inputs, micro_batch);
                        }});
      modules_.push_back(std::move(blocks));
      sharded_.push_back(std::move(sharded));
    }
    pipeline_.emplace(mesh_, schedule, stages, options);
  }

  Training train() {
    std::vector<at::Tensor> parameters;
    for (const auto& stage : sharded_) {
      for (const at::Tensor& parameter : stage->parameters()) parameters.push_back(parameter);
    }
    auto optimizer = make_optimizer(parameters);
    Training result;
    for (step_ = 0; step_ < kSteps; ++step_) {
      for (const auto& stage : sharded_) stage->zero_grad();
      for (const auto& outputs : pipeline_->step()) result.losses.push_back(outputs.front().item<float>());
      optimizer.step();
    }
    for (const auto& stage : sharded_) add_weights(*stage, result.weights);
    return result;
  }

  DeviceMesh& mesh() { return mesh_; }
  Pipeline& pipeline() { return *pipeline_; }
  ShardedModule& sharded(size_t stage) { return *sharded_.at(stage); }

 private:
  std::vector<at::Tensor> forward(Blocks& blocks, int index, const PipelineSchedule& schedule,
                                  const std::vector<at::Tensor>& inputs, int micro_batch) {
    const bool is_first = index == 0, is_last = index == schedule.stages() - 1;
    const at::Tensor hidden =
        blocks.forward(is_first ? samples(step_, micro_batch, mesh_.rank("dp_shard")).to(at::kFloat) : inputs.at(0));
    return {is_last ? loss_of(hidden, schedule.micro_batches) : hidden};
  }

  DeviceMesh mesh_;
  std::vector<std::shared_ptr<Blocks>> modules_;
  std::vector<std::shared_ptr<ShardedModule>> sharded_;
  std::optional<Pipeline> pipeline_;
  int step_ = 0;
};

void expect_equal(const Training& pipelined, const Training& alone, const std::string& what) {
  if (!pipelined.losses.empty()) {
    EXPECT_EQ(pipelined.losses, alone.losses) << what;
  }
  EXPECT_FALSE(pipelined.weights.empty());
  for (const auto& [name, weight] : pipelined.weights) {
    EXPECT_TRUE(torch::equal(weight, alone.weights.at(name))) << what << ": " << name;
  }
}

struct Order {
  const char* schedule;
  int ranks;
  int stages_per_rank;
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
                                 {"Interleaved1F1B", 2, 3}};

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
            expect_equal(pipelined, alone, what);
          });
        }
      }
    }
  }
}

// Trains the whole model sharded over data-parallel ranks, without a pipeline.
Training train_sharded(const Ranks& world, int micro_batches, ShardingStrategy strategy) {
  Blocks model(0, kBlocks);
  auto sharded = fully_shard(model, options_of(world, strategy));
  auto optimizer = make_optimizer(sharded->parameters());
  Training result;
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor loss = loss_of(model.forward(samples(step, i, world->rank()).to(at::kFloat)), micro_batches);
      BackwardOptions options;
      options.requires_gradient_sync = i + 1 == micro_batches;
      sharded->backward(loss, options);
      result.losses.push_back(loss.item<float>());
    }
    optimizer.step();
  }
  add_weights(*sharded, result.weights);
  return result;
}

TEST(Pipelines, OverDataParallelRanksTrainAsTheseAloneToTheBit) {
  constexpr int kMicroBatches = 4;
  for (const ShardingStrategy strategy : {kShardGradOp, kFullShard}) {
    std::vector<Training> alone(2);
    run_ranks(2, [&](Ranks world) {
      alone[static_cast<size_t>(world->rank())] = train_sharded(world, kMicroBatches, strategy);
    });
    for (const Order& order : {Order{"GPipe", 2, 1}, Order{"1F1B", 2, 1}, Order{"Interleaved1F1B", 2, 2}}) {
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

TEST(PipelineErrors, ANormThatIsNotFiniteIsAnErrorOnAllRanks) {
  const auto errors = errors_of_ranks(2, [](Ranks world) {
    StagesOfRank stages(world, make_pipeline_schedule("1F1B", 2, 1, 1), kShardGradOp);
    stages.pipeline().step();
    if (world->rank() == 0) stages.sharded(0).parameters().front().mutable_grad().fill_(INFINITY);
    stages.pipeline().clip_grad_norm_(1.0, 2.0, /*error_if_nonfinite=*/true);
  });
  EXPECT_THAT(errors, Each(HasSubstr("Pipeline: the norm of the gradients is inf (error_if_nonfinite is set)")));
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

std::vector<at::Tensor> nothing(const std::vector<at::Tensor>&, int) { return {}; }

// ---------------------------------------------------------------- tied parameters

constexpr int64_t kTokens = 11;

// An embedding that is also the head, around blocks.
struct Tied : torch::nn::Module {
  Tied(int begin, int end, bool first, bool last)
      : blocks(register_module("blocks", std::make_shared<Blocks>(begin, end))) {
    if (!first && !last) return;
    table = register_module("table", torch::nn::Embedding(kTokens, kWidth));
    const at::NoGradGuard no_grad;
    table->weight.copy_(torch::sin(torch::arange(kTokens * kWidth) * 0.3).view({kTokens, kWidth}));
  }
  at::Tensor embed(int step, int micro_batch) { return table->forward(tokens(step, micro_batch)); }
  at::Tensor loss(const at::Tensor& hidden, int step, int micro_batch, int micro_batches) {
    return torch::nn::functional::cross_entropy(torch::linear(blocks->forward(hidden), table->weight),
                                                (tokens(step, micro_batch) + 1) % kTokens) /
           micro_batches;
  }
  static at::Tensor tokens(int step, int micro_batch) {
    return (torch::arange(5) * (step + 2) + 3 * micro_batch).remainder(kTokens);
  }
  std::shared_ptr<Blocks> blocks;
  torch::nn::Embedding table{nullptr};
};

struct TiedTraining {
  Training training;
  std::vector<double> norms;
};

TiedTraining train_tied_alone(int micro_batches, bool clears) {
  Tied model(0, kBlocks, true, true);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.2));
  TiedTraining result;
  for (int step = 0; step < kSteps; ++step) {
    if (clears) optimizer.zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor loss = model.loss(model.embed(step, i), step, i, micro_batches);
      loss.backward();
      result.training.losses.push_back(loss.item<float>());
    }
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5));
    optimizer.step();
  }
  for (const auto& parameter : model.named_parameters()) {
    result.training.weights[parameter.key()] = parameter.value().detach();
  }
  return result;
}

TEST(TiedParameters, TrainAsInOneProcessAndStayEqual) {
  constexpr int kMicroBatches = 4;
  for (const bool clears : {true, false}) {
    const TiedTraining alone = train_tied_alone(kMicroBatches, clears);
    for (const int data_parallel : {1, 2, 3}) {
      run_ranks(2 * data_parallel, [&](Ranks world) {
        DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
        const bool first = mesh.rank("pp") == 0;
        Tied model(first ? 0 : 5, first ? 5 : kBlocks, first, !first);
        auto options = options_of(mesh.data_parallel().world, kShardGradOp);
        options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl, torch::nn::EmbeddingImpl>();
        auto sharded = fully_shard(model, options);
        int step = 0;
        const StageForward forward = [&](const std::vector<at::Tensor>& inputs, int i) -> std::vector<at::Tensor> {
          if (first) return {model.blocks->forward(model.embed(step, i))};
          return {model.loss(inputs.at(0), step, i, kMicroBatches)};
        };
        Pipeline pipeline(mesh, make_pipeline_schedule("1F1B", 2, 1, kMicroBatches),
                          {{mesh.rank("pp"), sharded, forward}}, {.tied_parameters = {"table.weight"}});
        torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.2));
        std::vector<double> losses, norms;
        for (; step < kSteps; ++step) {
          if (clears) sharded->zero_grad();
          for (const auto& outputs : pipeline.step()) losses.push_back(outputs.front().item<double>());
          norms.push_back(pipeline.clip_grad_norm_(0.5).item<double>());
          optimizer.step();
        }
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], alone.training.losses[i], 2e-6);
        for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(norms[i], alone.norms[i], 1e-5 * alone.norms[i]);
        Weights weights;
        add_weights(*sharded, weights);
        for (const auto& [name, weight] : weights) {
          EXPECT_TRUE(torch::allclose(weight, alone.training.weights.at(name), 1e-4, 2e-5)) << name;
        }
        const at::Tensor table = weights.at("table.weight").contiguous();
        const std::string bytes(static_cast<const char*>(table.const_data_ptr()), table.nbytes());
        EXPECT_THAT(world->all_gather_bytes(bytes, {"tables", 0, Pass::kUser}), Each(bytes));
      });
    }
  }
}

TEST(TiedParameters, ThatDifferAreNamed) {
  const auto errors_with = [](const std::function<void(Tied & model, Options & options, bool first)>& change,
                              const std::vector<std::string>& tied) {
    return errors_of_ranks(4, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
      const bool first = mesh.rank("pp") == 0;
      Tied model(first ? 0 : 6, first ? 6 : kBlocks, first, !first);
      Options options = options_of(mesh.data_parallel().world, kShardGradOp);
      options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl, torch::nn::EmbeddingImpl>();
      change(model, options, first);
      auto sharded = fully_shard(model, options);
      Pipeline(mesh, make_pipeline_schedule("1F1B", 2, 1, 2), {{mesh.rank("pp"), sharded, nothing}},
               {.tied_parameters = tied});
    });
  };
  const auto none = [](Tied&, Options&, bool) {};
  EXPECT_THAT(errors_with(none, {"table.weight"}), Each(testing::kNoError));
  EXPECT_THAT(errors_with(none, {}), Each(HasSubstr("parameter 'table.weight' is in stages 0 and 1")));
  EXPECT_THAT(
      errors_with(none, {"table.weight", "blocks.block0.bias"}),
      Each(HasSubstr("tied parameter 'blocks.block0.bias' must be in two stages, under the same name; it is in 1")));
  EXPECT_THAT(errors_with(
                  [](Tied& model, Options&, bool first) {
                    const at::NoGradGuard no_grad;
                    if (first) model.table->weight.mul_(2);
                  },
                  {"table.weight"}),
              Each(HasSubstr("tied parameter 'table.weight' has other values in stage 0 than in stage 1")));
  EXPECT_THAT(errors_with([](Tied&, Options& options, bool) { options.use_orig_params = false; }, {"table.weight"}),
              Each(HasSubstr("tied parameters need Options::use_orig_params")));
  EXPECT_THAT(errors_with(
                  [](Tied&, Options& options, bool first) {
                    if (first) options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
                    if (!first) options.auto_wrap_policy = {};
                  },
                  {"table.weight"}),
              Each(HasSubstr("is sharded differently in its two stages")));
}

// ---------------------------------------------------------------- tensors between stages

// Two stages of one Linear each, with forward functions of a test's own.
struct TwoStages {
  TwoStages(const Ranks& world, const std::string& schedule, int micro_batches, StageForward first, StageForward last)
      : mesh(DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}})), rank(mesh.rank("pp")) {
    linear = torch::nn::Linear(3, 3);
    module.register_module("linear" + std::to_string(rank), linear);
    sharded = fully_shard(module, options_of(mesh.data_parallel().world, kShardGradOp));
    pipeline.emplace(mesh, make_pipeline_schedule(schedule, 2, 1, micro_batches),
                     std::vector<PipelineStage>{{rank, sharded, rank == 0 ? std::move(first) : std::move(last)}});
  }
  DeviceMesh mesh;
  int rank;
  torch::nn::Module module;
  torch::nn::Linear linear{nullptr};
  std::shared_ptr<ShardedModule> sharded;
  std::optional<Pipeline> pipeline;
};

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

// ---------------------------------------------------------------- errors

TEST(PipelineErrors, TheWatchdogNamesTheActivationThatIsLate) {
  std::mutex mutex;
  std::string said;
  const auto has_said = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    return said.find(text) != std::string::npos;
  };
  run_ranks(2, [&](Ranks world) {
    DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}});
    const int stage = mesh.rank("pp");
    Blocks blocks(stage, stage + 1);
    Options options = options_of(mesh.data_parallel().world, kShardGradOp);
    options.debug.watchdog_warning = std::chrono::milliseconds(100);
    options.debug.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line + "\n";
    };
    auto sharded = fully_shard(blocks, options);
    const StageForward forward = [&](const std::vector<at::Tensor>& inputs, int micro_batch) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (stage == 0 && micro_batch == 1 && !has_said("has waited") && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      const at::Tensor hidden = blocks.forward(stage == 0 ? samples(0, micro_batch).to(at::kFloat) : inputs.at(0));
      return std::vector<at::Tensor>{stage == 0 ? hidden : loss_of(hidden, 2)};
    };
    Pipeline(mesh, make_pipeline_schedule("GPipe", 2, 1, 2), {{stage, sharded, forward}}).step();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("rank 1 has waited"),
                          HasSubstr("for its message of 'sizes of activation of micro-batch 1, stage 0'"),
                          HasSubstr("rank 0 has not sent it (last sent: message of 'sizes of activation of micro-batch "
                                    "0, stage 0'")));
}

TEST(PipelineErrors, AStageThatThrowsIsNamedOnAllRanks) {
  for (const int broken : {0, 1}) {
    const auto errors = errors_of_ranks(
        4,
        [&](Ranks world) {
          std::optional<TwoStages> stages;
          const auto pass_on = [&](int stage) {
            return [&, stage](const std::vector<at::Tensor>& inputs, int micro_batch) -> std::vector<at::Tensor> {
              TORCH_CHECK(stage != broken || micro_batch != 1, "this sample is broken");
              const at::Tensor hidden = stages->linear->forward(stage == 0 ? torch::ones({2, 3}) : inputs.at(0));
              return {stage == 0 ? hidden : hidden.sum()};
            };
          };
          stages.emplace(world, "1F1B", 4, pass_on(0), pass_on(1));
          stages->pipeline->step();
        },
        {.timeout = std::chrono::hours(1)});
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("this sample is broken"), HasSubstr(c10::str("(pp ", broken, ", dp_shard")),
                           HasSubstr(c10::str("action ", broken, "F1")))));
  }
}

TEST(PipelineErrors, OutputsThatDoNotFitAreNamed) {
  // The last stage's rank gets the error even if it is the first stage's.
  const auto error_with = [](const StageForward& first, const StageForward& last) {
    return errors_of_ranks(2,
                           [&](Ranks world) {
                             TwoStages stages(world, "GPipe", 1, first, last);
                             stages.pipeline->step();
                           })
        .at(1);
  };
  const StageForward one = [](const auto&, int) { return std::vector<at::Tensor>{torch::ones({2})}; };
  EXPECT_THAT(error_with(nothing, one),
              HasSubstr("stage 0 returned no tensor; a stage returns what the next one needs"));
  EXPECT_THAT(error_with([](const auto&, int) { return std::vector<at::Tensor>{at::Tensor()}; }, one),
              HasSubstr("stage 0: output 0 of 1 is undefined"));
  EXPECT_THAT(error_with(one, nothing), HasSubstr("stage 1 returned no tensor; the last stage returns the loss first"));
  EXPECT_THAT(error_with(one, one),
              HasSubstr("the first output of the last stage, 1, must be the loss, of one element; it has sizes [2]"));
}

struct Given {
  PipelineSchedule schedule = make_pipeline_schedule("1F1B", 2, 1, 4);
  std::vector<int> stages;  // of this rank
  int first_block = 0;      // of this rank's module
  PipelineOptions options = {};
};

// Returns the errors of two ranks that were set up in this way.
std::vector<std::string> errors_of_set_up(const std::function<Given(int rank)>& of_rank) {
  return errors_of_ranks(2, [&](Ranks world) {
    const Given set_up = of_rank(world->rank());
    DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}});
    Blocks blocks(set_up.first_block, set_up.first_block + 1);
    auto sharded = fully_shard(blocks, options_of(mesh.data_parallel().world, kShardGradOp));
    std::vector<PipelineStage> stages;
    for (const int index : set_up.stages) stages.push_back({index, sharded, nothing});
    Pipeline(mesh, set_up.schedule, stages, set_up.options);
  });
}

TEST(PipelineErrors, RanksThatAreGivenDifferentlyAreNamed) {
  EXPECT_THAT(errors_of_set_up(
                  [](int rank) { return Given{make_pipeline_schedule("1F1B", 2, 1, 4 + rank), {rank}, rank, {}}; }),
              Each(HasSubstr("Pipeline: rank 1 (pp 1) was given other micro-batches (5) than rank 0 (pp 0) (4)")));
  EXPECT_THAT(errors_of_set_up([](int rank) {
                return Given{make_pipeline_schedule(rank == 0 ? "GPipe" : "1F1B", 2, 1, 4), {rank}, rank, {}};
              }),
              Each(HasSubstr("rank 1 (pp 1) was given other schedule than rank 0 (pp 0)")));
  EXPECT_THAT(errors_of_set_up([](int rank) {
                return Given{.stages = {rank}, .first_block = rank, .options = {.sync_each_micro_batch = rank == 1}};
              }),
              Each(HasSubstr("other sync_each_micro_batch (true) than rank 0 (pp 0) (false)")));
}

TEST(PipelineErrors, StagesThatDoNotMakeUpTheModelAreNamed) {
  EXPECT_THAT(errors_of_set_up([](int rank) { return Given{.stages = {rank}, .first_block = 0}; }),
              Each(HasSubstr("parameter 'block0.weight' is in stages 0 and 1")));
  const std::vector<std::string> names{"block0.weight", "block0.bias", "block1.weight", "block1.bias"};
  const auto with = [&](std::vector<std::string> parameters) {
    return errors_of_set_up(
        [&](int rank) { return Given{.stages = {rank}, .first_block = rank, .options = {.parameters = parameters}}; });
  };
  EXPECT_THAT(with(names), Each(testing::kNoError));
  EXPECT_THAT(with({"block0.weight", "block0.bias", "block1.weight"}),
              Each(HasSubstr("parameter 'block1.bias' of stage 1 is none of the model's parameters")));
  EXPECT_THAT(with({"block0.weight", "block0.bias", "block1.weight", "block1.bias", "head.weight"}),
              Each(HasSubstr("parameter 'head.weight' of the model is in no stage")));
}

TEST(PipelineErrors, StagesOfOtherRanksAndPassesThatAreMissingAreNamed) {
  const auto errors = errors_of_set_up([](int rank) { return Given{.stages = {1 - rank}, .first_block = rank}; });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 (pp 0) was given the stages [1]; the schedule gives it [0]"));
  EXPECT_THAT(errors_of_set_up([](int rank) {
                return Given{make_pipeline_schedule("InterleavedZeroBubble", 2, 1, 4), {rank}, rank, {}};
              }),
              Each(HasSubstr("passes for the gradients of inputs or weights alone are not supported yet")));
  EXPECT_THAT(
      errors_of_set_up([](int rank) { return Given{make_pipeline_schedule("1F1B", 3, 1, 4), {rank}, rank, {}}; }),
      Each(HasSubstr("the schedule is of 3 ranks, the mesh has 2 in pp")));
}

}  // namespace
}  // namespace fsdp::pipeline::pipeline_test
