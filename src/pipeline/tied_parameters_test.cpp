// Tests parameters that two stages share.
#include <functional>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"
#include "pipeline/testing/stages.h"
#include "support/devices/test_device.h"
#include "support/faults/error_of.h"
#include "support/ranks/nccl_ranks.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::tied_parameters_test {
namespace {

using testing::add_weights;
using testing::Blocks;
using ::testing::Each;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::kBlocks;
using testing::kSteps;
using testing::kWidth;
using testing::nothing;
using testing::options_of;
using testing::Ranks;
using testing::run_ranks;
using testing::Training;
using testing::Weights;
using enum ShardingStrategy;

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
    return (torch::arange(5) * (step + 2) + 3 * micro_batch).remainder(kTokens).to(testing::test_device());
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

constexpr int kMicroBatches = 4;

// Trains the two stages, and compares.
void expect_trains_as(const TiedTraining& alone, const Ranks& world, bool clears) {
  DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
  const bool first = mesh.rank("pp") == 0;
  Tied model(first ? 0 : 5, first ? 5 : kBlocks, first, !first);
  model.to(testing::test_device());
  auto options = options_of(mesh.data_parallel(), kShardGradOp);
  options.auto_wrap_policy = module_class_policy<torch::nn::LinearImpl, torch::nn::EmbeddingImpl>();
  auto sharded = fully_shard(model, options);
  int step = 0;
  const StageForward forward = [&](const std::vector<at::Tensor>& inputs, int i) -> std::vector<at::Tensor> {
    if (first) return {model.blocks->forward(model.embed(step, i))};
    return {model.loss(inputs.at(0), step, i, kMicroBatches)};
  };
  Pipeline pipeline(mesh, make_pipeline_schedule("1F1B", 2, 1, kMicroBatches), {{mesh.rank("pp"), sharded, forward}},
                    {.tied_parameters = {"table.weight"}});
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
}

TEST(TiedParameters, TrainAsInOneProcessAndStayEqual) {
  for (const bool clears : {true, false}) {
    const TiedTraining alone = train_tied_alone(kMicroBatches, clears);
    for (const int data_parallel : {1, 2, 3}) {
      run_ranks(2 * data_parallel, [&](const Ranks& world) { expect_trains_as(alone, world, clears); });
    }
  }
}

// Over NCCL, the streams of two ranks that both sent first would wait for each other.
TEST(TiedParameters, TrainOnDevicesWithStreams) {
  if (!comm::nccl_is_built_in()) GTEST_SKIP() << "built without NCCL's headers";
  testing::fresh_fake_nccl();
  const TiedTraining alone = train_tied_alone(kMicroBatches, true);
  const testing::DeviceKindGuard simulated(testing::DeviceKind::kSimulated);
  testing::run_nccl_ranks_on_own_devices(4, [&](const Ranks& world) { expect_trains_as(alone, world, true); });
}

TEST(TiedParameters, ThatDifferAreNamed) {
  const auto errors_with = [](const std::function<void(Tied & model, Options & options, bool first)>& change,
                              const std::vector<std::string>& tied) {
    return errors_of_ranks(4, [&](Ranks world) {
      DeviceMesh mesh = DeviceMesh::make(world, {{"pp", 2}, {"dp_shard", -1}});
      const bool first = mesh.rank("pp") == 0;
      Tied model(first ? 0 : 6, first ? 6 : kBlocks, first, !first);
      Options options = options_of(mesh.data_parallel(), kShardGradOp);
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

}  // namespace
}  // namespace fsdp::pipeline::tied_parameters_test
