// Trains a chain of blocks as a pipeline, for benchmarks/pipeline.py and tests/python/test_pipeline_reference.py, which
// start it once for each rank with the environment of torchrun. PyTorch's side is torch_pipeline.py.
// Usage: pipeline_bench SCHEDULE STAGES_PER_RANK DATA_PARALLEL MICRO_BATCHES BLOCKS WIDTH ROWS STEPS
// SCHEDULE "plain": the whole model in LibTorch, without this library, accumulating the same micro-batches.
// Each rank prints JSON: the losses that it has, the seconds of each step, the mean bubble, and the mean seconds of
// passes of each kind, 0 if the schedule has none.
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "chain.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "fsdp/pipeline.h"

namespace fsdp::benchmarks {
namespace {

struct Setting {
  std::string schedule;
  int stages_per_rank = 1;
  int data_parallel = 1;
  int micro_batches = 8;
  int blocks = 8;
  int64_t width = 256;
  int64_t rows = 64;  // of a micro-batch
  int steps = 3;
};

at::Tensor samples(const Setting& setting, int step, int micro_batch, int data_rank) {
  return numbers({setting.rows, setting.width}, 0.11, step + 0.3 * micro_batch + 0.7 * data_rank);
}
at::Tensor loss_of(const Setting& setting, const at::Tensor& hidden) {
  return (hidden * hidden).mean() / setting.micro_batches;
}

// What a rank trains with.
struct Training {
  std::vector<at::Tensor> parameters;
  std::function<std::vector<double>(int step)> step;  // returns the losses
  std::function<double()> bubble;
  std::function<std::vector<PipelinePass>()> passes;
};

Training plain_training(const Setting& setting) {
  auto model = std::make_shared<Chain>(setting.width, 0, setting.blocks);
  const auto step = [=](int number) {
    std::vector<double> losses;
    for (int i = 0; i < setting.micro_batches; ++i) {
      const at::Tensor loss = loss_of(setting, model->forward(samples(setting, number, i, 0)));
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
  return {model->parameters(), step, [] { return 0.0; }, [] { return std::vector<PipelinePass>(); }};
}

Training pipelined_training(const Setting& setting, const std::shared_ptr<Communicator>& world) {
  const int ranks = world->size() / setting.data_parallel;
  auto mesh = DeviceMesh::make(world, {{"pp", ranks}, {"dp_shard", setting.data_parallel}});
  const PipelineSchedule schedule =
      make_pipeline_schedule(setting.schedule, ranks, setting.stages_per_rank, setting.micro_batches);
  Options options;
  options.mesh = mesh.data_parallel();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.auto_wrap_policy = module_class_policy<BlockImpl>();
  Training training;
  std::vector<PipelineStage> stages;
  const auto number = std::make_shared<int>(0);
  for (int index = 0; index < schedule.stages(); ++index) {
    if (schedule.rank_of_stage[static_cast<size_t>(index)] != mesh.rank("pp")) continue;
    const auto begin = setting.blocks * index / schedule.stages();
    const auto end = setting.blocks * (index + 1) / schedule.stages();
    auto chain = std::make_shared<Chain>(setting.width, begin, end);
    auto sharded = fully_shard(*chain, options);
    for (const at::Tensor& leaf : sharded->parameters()) training.parameters.push_back(leaf);
    const bool is_last = index + 1 == schedule.stages();
    stages.push_back({index, sharded,
                      [=, data_rank = mesh.rank("dp_shard")](const std::vector<at::Tensor>& inputs, int micro_batch) {
                        const at::Tensor hidden = chain->forward(
                            index == 0 ? samples(setting, *number, micro_batch, data_rank) : inputs.at(0));
                        return std::vector<at::Tensor>{is_last ? loss_of(setting, hidden) : hidden};
                      }});
  }
  const auto pipeline = std::make_shared<Pipeline>(mesh, schedule, stages);
  training.step = [=](int step) {
    *number = step;
    std::vector<double> losses;
    for (const auto& outputs : pipeline->step()) losses.push_back(outputs.front().item<double>());
    return losses;
  };
  training.bubble = [=] { return pipeline->bubble(); };
  training.passes = [=] { return pipeline->passes(); };
  return training;
}

double mean_seconds(const std::vector<PipelinePass>& passes, PipelineActionKind kind) {
  double sum = 0;
  int count = 0;
  for (const PipelinePass& pass : passes) {
    if (pass.action.kind != kind) continue;
    sum += pass.end - pass.begin;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

int run(const Setting& setting) {
  const RankEnvironment environment = rank_environment();
  const auto world = make_cpu_communicator(environment).communicator;
  Training training = setting.schedule == "plain" ? plain_training(setting) : pipelined_training(setting, world);
  torch::optim::SGD optimizer(training.parameters, torch::optim::SGDOptions(0.05));
  nlohmann::json losses = nlohmann::json::array(), seconds = nlohmann::json::array();
  double bubble = 0;
  std::vector<PipelinePass> passes;
  for (int step = 0; step < setting.steps; ++step) {
    world->barrier({"step", static_cast<uint64_t>(step), Pass::kUser});
    const auto begun = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    losses.push_back(training.step(step));
    optimizer.step();
    world->barrier({"end of step", static_cast<uint64_t>(step), Pass::kUser});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    if (step == 0 && setting.steps > 1) continue;  // the first step allocates
    bubble += training.bubble() / std::max(1, setting.steps - 1);
    for (const PipelinePass& pass : training.passes()) passes.push_back(pass);
  }
  const nlohmann::json result{{"losses", losses},
                              {"seconds", seconds},
                              {"bubble", bubble},
                              {"forward", mean_seconds(passes, PipelineActionKind::kForward)},
                              {"backward", mean_seconds(passes, PipelineActionKind::kBackward)},
                              {"input_gradient", mean_seconds(passes, PipelineActionKind::kInputGradient)},
                              {"weight_gradient", mean_seconds(passes, PipelineActionKind::kWeightGradient)}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace fsdp::benchmarks

int main(int argc, char** argv) {
  if (argc != 9) {
    std::fprintf(
        stderr, "usage: pipeline_bench SCHEDULE STAGES_PER_RANK DATA_PARALLEL MICRO_BATCHES BLOCKS WIDTH ROWS STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  try {
    return fsdp::benchmarks::run(
        {argv[1], number(2), number(3), number(4), number(5), number(6), number(7), number(8)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
