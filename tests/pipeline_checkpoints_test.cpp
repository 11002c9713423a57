// Tests that the checkpoint of a model is the same for every mesh: saved with one division into stages, data-parallel
// ranks and replicas, it loads into any other one, equal to the bit.
#include <nlohmann/json.hpp>
#include <set>

#include "formats/own/checkpoint_folder.h"
#include "fsdp/checkpoint.h"
#include "fsdp/fsdp.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"
#include "support/training/sharding.h"
#include "support/training/trained_stages.h"

namespace fsdp::pipeline_checkpoints_test {
namespace {

using namespace fsdp::testing;  // not GoogleTest's
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Ranks = std::shared_ptr<Communicator>;
using Mesh = StageMesh;

const std::vector<Mesh> kMeshes = stage_meshes();

// Everything in a checkpoint, whichever ranks wrote it.
struct Contents {
  std::map<std::string, torch::Tensor> tensors;
  nlohmann::json leaves, user;
  std::vector<std::set<std::string>> groups;
  std::vector<nlohmann::json> options;
};

Contents contents_of(const fs::path& path) {
  const formats::CheckpointFolder folder(path);
  Contents contents;
  for (const auto& [name, tensor] : folder.manifest().tensors) {
    const torch::Tensor flat = torch::empty({tensor.numel()}, tensor.dtype);
    folder.read(name, 0, flat.numel(), flat);
    contents.tensors[name] =
        tensor.strides.empty() ? flat.view(tensor.shape) : flat.as_strided(tensor.shape, tensor.strides).contiguous();
  }
  const nlohmann::json& state = folder.manifest().state;
  contents.leaves = state.at("optimizer").at("leaves");
  contents.user = state.at("user");
  for (const nlohmann::json& group : state.at("optimizer").at("groups")) {
    const auto names = group.at("parameters").get<std::vector<std::string>>();
    contents.groups.emplace_back(names.begin(), names.end());
    EXPECT_EQ(contents.groups.back().size(), names.size()) << "a parameter is in a group twice";
    contents.options.push_back(group.at("options"));
  }
  return contents;
}

void expect_equal(const Contents& got, const Contents& want, const std::string& what) {
  EXPECT_EQ(got.tensors.size(), want.tensors.size()) << what;
  for (const auto& [name, tensor] : want.tensors) {
    ASSERT_EQ(got.tensors.count(name), 1u) << what << ": " << name;
    EXPECT_TRUE(same_bits(got.tensors.at(name), tensor)) << what << ": " << name;
  }
  EXPECT_EQ(got.leaves, want.leaves) << what;
  EXPECT_EQ(got.groups, want.groups) << what;
  EXPECT_EQ(got.options, want.options) << what;
  EXPECT_EQ(got.user, want.user) << what;
}

class PipelineCheckpoints : public ::testing::Test {
 protected:
  fs::path saved_on(const Mesh& mesh) {
    const fs::path path = folder_.path(mesh.text());
    run_ranks(mesh.ranks(), [&](const Ranks& world) {
      TrainedStages run(world, mesh);
      run.step(0);
      run.step(1);
      run.save(path);
    });
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(PipelineCheckpoints, LoadOnEveryMesh) {
  for (const Mesh& from : kMeshes) {
    const fs::path path = saved_on(from);
    const Contents saved = contents_of(path);
    EXPECT_EQ(saved.leaves.size(), saved.groups[0].size() + saved.groups[1].size());
    for (const Mesh& to : kMeshes) {
      const std::string what = from.text() + " -> " + to.text();
      const fs::path again = folder_.path(what);
      run_ranks(to.ranks(), [&](const Ranks& world) {
        TrainedStages run(world, to, /*seed=*/99);
        const LoadedCheckpoint loaded = run.load(path);
        EXPECT_TRUE(loaded.model.complete() && loaded.optimizer.complete()) << what;
        EXPECT_EQ(loaded.model.loaded.size(), saved.leaves.size()) << what;
        run.save(again);
      });
      expect_equal(contents_of(again), saved, what);
    }
  }
}

// Without data-parallel ranks the same batches come in any division into stages.
TEST_F(PipelineCheckpoints, TrainingGoesOnWithTheSameBits) {
  const Mesh& two = kMeshes[3];
  const fs::path path = saved_on(two);
  std::vector<Contents> after;
  for (const bool resumes : {false, true}) {
    const fs::path later = folder_.path(resumes ? "resumed" : "uninterrupted");
    run_ranks(two.ranks(), [&](const Ranks& world) {
      TrainedStages run(world, two, resumes ? 99 : 17);
      if (resumes) {
        run.load(path);
      } else {
        run.step(0);
        run.step(1);
      }
      run.step(2);
      run.save(later);
    });
    after.push_back(contents_of(later));
  }
  expect_equal(after[1], after[0], "resumed");
}

TEST_F(PipelineCheckpoints, AsynchronousOnesHaveTheSameContents) {
  const Mesh& mesh = kMeshes[2];
  const fs::path path = saved_on(mesh), async = folder_.path("asynchronous");
  run_ranks(mesh.ranks(), [&](const Ranks& world) {
    TrainedStages run(world, mesh, 99);
    run.load(path);
    AsyncCheckpointer checkpointer(world);
    checkpointer.save(async, run.contents(), R"({"step": 2})");
    EXPECT_EQ(checkpointer.finish(), async);
  });
  expect_equal(contents_of(async), contents_of(path), "asynchronous");
}

TEST_F(PipelineCheckpoints, EveryStageMustFindItsParameters) {
  const Mesh& whole = kMeshes[0];
  const fs::path path = folder_.path("fewer");
  run_ranks(1, [&](const Ranks& world) {
    TrainedStages run(world, whole);
    auto other = torch::nn::Linear(3, 3);
    auto sharded = fully_shard(*other, one_rank_options());
    save_checkpoint(path, {*sharded, *other}, "{}", *world);
  });
  run_ranks(2, [&](const Ranks& world) {
    TrainedStages run(world, kMeshes[3]);
    EXPECT_THAT(error_of([&] { run.load(path); }),
                AllOf(HasSubstr("missing: transformer.h.0.attn.c_attn.weight\n"),
                      HasSubstr("missing: transformer.h.3.attn.c_attn.weight\n"), HasSubstr("unexpected: weight")));
    const LoadedCheckpoint loaded = run.load(path, {.strict = false});
    EXPECT_TRUE(loaded.model.loaded.empty());
  });
}

TEST_F(PipelineCheckpoints, StagesMustAgreeOnTheOptimizersGroups) {
  run_ranks(2, [&](const Ranks& world) {
    TrainedStages run(world, kMeshes[3], 17, 0.1 * (1 + world->rank()));
    EXPECT_THAT(error_of([&] { run.save(folder_.path("other options")); }),
                AllOf(HasSubstr("parameter group 0 of the optimizer has the options {"), HasSubstr("on rank 1"),
                      HasSubstr("they must be the same for all stages")));
    EXPECT_FALSE(fs::exists(folder_.path("other options")));
  });
}

}  // namespace
}  // namespace fsdp::pipeline_checkpoints_test
