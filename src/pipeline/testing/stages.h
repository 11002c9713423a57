// A model of blocks that is cut into stages, and its training.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/activation_checkpoint.h"
#include "fsdp/fully_shard.h"
#include "fsdp/grad_scaler.h"
#include "fsdp/pipeline.h"
#include "support/devices/test_device.h"

namespace fsdp::testing {

using Ranks = std::shared_ptr<Communicator>;
using Weights = std::map<std::string, at::Tensor>;

inline constexpr int64_t kWidth = 7;
inline constexpr int kBlocks = 12;
inline constexpr int kSteps = 3;

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
    for (auto& block : linear) {
      const auto run = [&block](const at::Tensor& input) { return input + torch::tanh(block->forward(input)); };
      hidden = recomputes ? activation_checkpoint(run, hidden) : run(hidden);
    }
    return hidden;
  }
  std::vector<torch::nn::Linear> linear;
  bool recomputes = false;
};

// Samples of one micro-batch of a data-parallel rank. Their number differs, as with sequences of several lengths.
inline at::Tensor samples(int step, int micro_batch, int data_rank = 0) {
  const int rows = 2 + micro_batch % 3;
  return ((torch::arange(rows * kWidth) * (step + 3) + 5 * micro_batch + 11 * data_rank) % 13).view({rows, kWidth}) /
         13.0;
}

inline at::Tensor loss_of(const at::Tensor& hidden, int micro_batches) {
  return (hidden * hidden).mean() / micro_batches;
}

struct Training {
  std::vector<float> losses;
  Weights weights;
};

inline torch::optim::AdamW make_optimizer(std::vector<at::Tensor> parameters) {
  return torch::optim::AdamW(std::move(parameters), torch::optim::AdamWOptions(0.01));
}

inline void add_weights(ShardedModule& sharded, Weights& weights) {
  sharded.for_each_full_parameter(
      [&](const std::string& fqn, const at::Tensor& full) { weights[fqn] = full.cpu().clone(); });
}

// The options of a test for ranks of this mesh, with a unit for each block.
inline Options options_of(ProcessMesh mesh, Options options) {
  options.mesh = std::move(mesh);
  options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl>();
  return options;
}

inline Options options_of(ProcessMesh mesh, ShardingStrategy strategy) {
  Options options;
  options.sharding_strategy = strategy;
  return options_of(std::move(mesh), options);
}

// Trains the whole model sharded over data-parallel ranks, without a pipeline. `scaler`: of the losses, or null.
inline Training train_sharded(const Ranks& world, int micro_batches, const Options& options,
                              ShardedGradScaler* scaler = nullptr) {
  Blocks model(0, kBlocks);
  auto sharded = fully_shard(model, options_of({world, nullptr, nullptr}, options));
  auto optimizer = make_optimizer(sharded->parameters());
  Training result;
  for (int step = 0; step < kSteps; ++step) {
    sharded->zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor loss = loss_of(model.forward(samples(step, i, world->rank()).to(at::kFloat)), micro_batches);
      BackwardOptions backward;
      backward.requires_gradient_sync = i + 1 == micro_batches;
      sharded->backward(scaler ? scaler->scale(loss) : loss, backward);
      result.losses.push_back(loss.item<float>());
    }
    if (!scaler) {
      optimizer.step();
    } else {
      scaler->step(*sharded, optimizer);
      scaler->update();
    }
  }
  add_weights(*sharded, result.weights);
  return result;
}

inline void expect_equal(const Training& pipelined, const Training& alone, const std::string& what) {
  if (!pipelined.losses.empty()) {
    EXPECT_EQ(pipelined.losses, alone.losses) << what;
  }
  EXPECT_FALSE(pipelined.weights.empty());
  for (const auto& [name, weight] : pipelined.weights) {
    EXPECT_TRUE(torch::equal(weight, alone.weights.at(name))) << what << ": " << name;
  }
}

// For passes that add up the same gradients in another order.
inline void expect_close(const Training& pipelined, const Training& alone, const std::string& what) {
  for (size_t i = 0; i < pipelined.losses.size(); ++i) EXPECT_NEAR(pipelined.losses[i], alone.losses[i], 1e-6) << what;
  EXPECT_FALSE(pipelined.weights.empty());
  for (const auto& [name, weight] : pipelined.weights) {
    EXPECT_TRUE(torch::allclose(weight, alone.weights.at(name), 1e-5, 1e-6)) << what << ": " << name;
  }
}

// A rank's stages of the model, and their training.
class StagesOfRank {
 public:
  StagesOfRank(const Ranks& world, const PipelineSchedule& schedule, ShardingStrategy strategy,
               const PipelineOptions& options = {})
      : StagesOfRank(world, schedule, options_of({}, strategy), options) {}
  StagesOfRank(const Ranks& world, const PipelineSchedule& schedule, const Options& sharding,
               const PipelineOptions& options = {})
      : micro_batches_(schedule.micro_batches),
        num_stages_(schedule.stages()),
        mesh_(DeviceMesh::make(world, {{"pp", schedule.ranks()}, {"dp_shard", -1}})) {
    const ProcessMesh data = mesh_.data_parallel();
    std::vector<PipelineStage> stages;
    for (int index = 0; index < schedule.stages(); ++index) {
      if (schedule.rank_of_stage[static_cast<size_t>(index)] != mesh_.rank("pp")) continue;
      auto blocks =
          std::make_shared<Blocks>(kBlocks * index / schedule.stages(), kBlocks * (index + 1) / schedule.stages());
      blocks->to(test_device());
      auto sharded = fully_shard(*blocks, options_of(data, sharding));
      stages.push_back({index, sharded, [this, blocks, index](const auto& inputs, int micro_batch) {
                          return forward(*blocks, index, inputs, micro_batch);
                        }});
      modules_.push_back(std::move(blocks));
      sharded_.push_back(std::move(sharded));
    }
    pipeline_.emplace(mesh_, schedule, stages, options);
  }

  void recompute() {
    for (const auto& blocks : modules_) blocks->recomputes = true;
  }

  Training train(ShardedGradScaler* scaler = nullptr) {
    scaler_ = scaler;
    std::vector<at::Tensor> parameters;
    for (const auto& stage : sharded_) {
      for (const at::Tensor& parameter : stage->parameters()) parameters.push_back(parameter);
    }
    auto optimizer = make_optimizer(parameters);
    Training result;
    for (step_ = 0; step_ < kSteps; ++step_) {
      for (const auto& stage : sharded_) stage->zero_grad();
      for (const auto& outputs : pipeline_->step()) result.losses.push_back(outputs.back().item<float>());
      update(optimizer);
    }
    for (const auto& stage : sharded_) add_weights(*stage, result.weights);
    return result;
  }

  DeviceMesh& mesh() { return mesh_; }
  Pipeline& pipeline() { return *pipeline_; }
  ShardedModule& sharded(size_t stage) { return *sharded_.at(stage); }

 private:
  std::vector<at::Tensor> forward(Blocks& blocks, int index, const std::vector<at::Tensor>& inputs, int micro_batch) {
    const bool is_first = index == 0, is_last = index == num_stages_ - 1;
    const at::Tensor hidden = blocks.forward(
        is_first ? samples(step_, micro_batch, mesh_.rank("dp_shard")).to(test_device(), at::kFloat) : inputs.at(0));
    if (!is_last) return {hidden};
    const at::Tensor loss = loss_of(hidden, micro_batches_);
    return {scaler_ ? scaler_->scale(loss) : loss, loss};
  }
  void update(torch::optim::Optimizer& optimizer) {
    if (!scaler_) {
      optimizer.step();
      return;
    }
    pipeline_->unscale_(*scaler_);
    scaler_->step(*sharded_.front(), [&] { optimizer.step(); });
    scaler_->update();
  }

  int micro_batches_, num_stages_;
  DeviceMesh mesh_;
  std::vector<std::shared_ptr<Blocks>> modules_;
  std::vector<std::shared_ptr<ShardedModule>> sharded_;
  std::optional<Pipeline> pipeline_;
  int step_ = 0;
  ShardedGradScaler* scaler_ = nullptr;
};

// Two stages of one Linear each, with forward functions of a test's own.
struct TwoStages {
  TwoStages(const Ranks& world, const std::string& schedule, int micro_batches, StageForward first, StageForward last)
      : mesh(DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}})), rank(mesh.rank("pp")) {
    linear = torch::nn::Linear(3, 3);
    module.register_module("linear" + std::to_string(rank), linear);
    sharded = fully_shard(module, options_of(mesh.data_parallel(), ShardingStrategy::kShardGradOp));
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

// A stage that computes nothing.
inline std::vector<at::Tensor> nothing(const std::vector<at::Tensor>&, int) { return {}; }

}  // namespace fsdp::testing
