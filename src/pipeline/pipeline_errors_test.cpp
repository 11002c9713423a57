// Tests the errors of pipelines, and reports of ranks that are late.
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/fully_shard.h"
#include "pipeline/testing/stages.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::pipeline::pipeline_errors_test {
namespace {

using ::testing::AllOf;
using testing::Blocks;
using ::testing::Each;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::nothing;
using testing::options_of;
using testing::Ranks;
using testing::run_ranks;
using testing::samples;
using testing::StagesOfRank;
using testing::TwoStages;
using enum ShardingStrategy;

TEST(PipelineErrors, ANormThatIsNotFiniteIsAnErrorOnAllRanks) {
  const auto errors = errors_of_ranks(2, [](Ranks world) {
    StagesOfRank stages(world, make_pipeline_schedule("1F1B", 2, 1, 1), kShardGradOp);
    stages.pipeline().step();
    if (world->rank() == 0) stages.sharded(0).parameters().front().mutable_grad().fill_(INFINITY);
    stages.pipeline().clip_grad_norm_(1.0, 2.0, /*error_if_nonfinite=*/true);
  });
  EXPECT_THAT(errors, Each(HasSubstr("Pipeline: the norm of the gradients is inf (error_if_nonfinite is set)")));
}

TEST(PipelineErrors, OfTheEngineNameTheRankAmongAllAndItsCoordinates) {
  for (const int ranks : {2, 4}) {
    const auto errors = errors_of_ranks(ranks, [](Ranks world) {
      StagesOfRank stages(world, make_pipeline_schedule("1F1B", 2, 1, 1), kShardGradOp);
      stages.sharded(0).set_requires_gradient_sync(*torch::nn::Linear(1, 1), false);
    });
    const std::vector<std::string> places =
        ranks == 2 ? std::vector<std::string>{"rank 0 (pp 0): ", "rank 1 (pp 1): "}
                   : std::vector<std::string>{"rank 0 (pp 0, dp_shard 0): ", "rank 1 (pp 0, dp_shard 1): ",
                                              "rank 2 (pp 1, dp_shard 0): ", "rank 3 (pp 1, dp_shard 1): "};
    for (size_t rank = 0; rank < places.size(); ++rank) EXPECT_THAT(errors[rank], HasSubstr("fsdp: " + places[rank]));
  }
}

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
    Options options = options_of(mesh.data_parallel(), kShardGradOp);
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
    auto sharded = fully_shard(blocks, options_of(mesh.data_parallel(), kShardGradOp));
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

TEST(PipelineErrors, StagesOfOtherRanksAreNamed) {
  const auto errors = errors_of_set_up([](int rank) { return Given{.stages = {1 - rank}, .first_block = rank}; });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 (pp 0) was given the stages [1]; the schedule gives it [0]"));
  EXPECT_THAT(
      errors_of_set_up([](int rank) { return Given{make_pipeline_schedule("1F1B", 3, 1, 4), {rank}, rank, {}}; }),
      Each(HasSubstr("the schedule is of 3 ranks, the mesh has 2 in pp")));
}

}  // namespace
}  // namespace fsdp::pipeline::pipeline_errors_test
