// Tensors whose rows are split by code other than FSDP: saved by some ranks, loaded by others, and errors.
#include "state/split_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/collective_shapes.h"
#include "formats/own/checkpoint_folder.h"
#include "state/async_saver.h"
#include "state/testing/state_runs.h"
#include "support/devices/test_device.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::state::split_tensors_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // this project's namespace
using ::testing::AllOf;
using ::testing::Combine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using ::testing::Values;
using World = std::shared_ptr<Communicator>;

// ---------------------------------------------------------------- tables

struct Whole {
  std::string name, state;
  at::Tensor values;
};

// Tables of fp32 and bf16, one with fewer rows than ranks, and state with one number for each row. Another `number`
// gives other values.
std::vector<Whole> tables(int number) {
  const auto values = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return (torch::arange(c10::multiply_integers(sizes)) + 1 + 300 * number).sin().view(sizes).to(dtype);
  };
  return {{"embedding.table.0", "", values({2, 3}, at::kFloat)},
          {"embedding.table.1", "", values({11, 4}, at::kBFloat16)},
          {"embedding.table.0", "squares", values({2}, at::kFloat)},
          {"embedding.table.1", "squares", values({11}, at::kFloat)}};
}

SplitTensor part_on(const Whole& whole, const Communicator& world) {
  const comm::Part part = comm::part_of(whole.values.size(0), world.rank(), world.size());
  const at::Tensor rows = whole.values.narrow(0, part.begin, part.numel).clone().to(test_device());
  return {whole.name, whole.state, whole.values.sizes().vec(), part.begin, rows};
}

std::vector<SplitTensor> split_tables(const Communicator& world, int number) {
  std::vector<SplitTensor> split;
  for (const Whole& whole : tables(number)) split.push_back(part_on(whole, world));
  return split;
}

void expect_tables(const std::vector<SplitTensor>& split, int number, const Communicator& world) {
  const std::vector<SplitTensor> want = split_tables(world, number);
  ASSERT_EQ(split.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same_bits(split[i].rows, want[i].rows)) << full_name(want[i]) << " on rank " << world.rank();
  }
}

// ---------------------------------------------------------------- runs

struct TableRun {
  TableRun(const World& world_, uint64_t seed, int number)
      : world(world_),
        rank({world->size(), ShardingStrategy::kFullShard, true, false}, world, seed, /*fused=*/true),
        split(split_tables(*world, number)) {}
  TrainingState state(bool with_optimizer = true) {
    TrainingState all = rank.training_state();
    if (!with_optimizer) all.optimizer = nullptr;
    all.split = split;
    return all;
  }
  void save(const fs::path& path, bool async, int step = 0) {
    if (!async) return save_training_state(path, state(), {{"step", step}}, *world);
    AsyncSaver saver(world);
    saver.save(path, state(), {{"step", step}});
    for (const SplitTensor& tensor : split) tensor.rows.fill_(-1);  // training continues
    saver.finish();
  }
  LoadedTrainingState load(const fs::path& path, const LoadOptions& options = {}, bool with_optimizer = true) {
    return load_training_state(path, state(with_optimizer), *world, options);
  }

  World world;
  OneRank rank;
  std::vector<SplitTensor> split;
};

class SplitTensors : public ::testing::Test {
 protected:
  // Saves the tables with two ranks.
  void save_tables() {
    run_ranks(2, [&](const World& world) { TableRun(world, 17, 1).save(path, /*async=*/false); });
  }

  UnsyncedFileSystem unsynced;
  const formats::FileSystemGuard guard{unsynced};
  const testing::TemporaryFolder folder;
  const fs::path path = folder.path() / "it";
};

// ---------------------------------------------------------------- ranks

class SplitOverRanks : public SplitTensors,
                       public ::testing::WithParamInterface<std::tuple<std::pair<int, int>, bool>> {};

TEST_P(SplitOverRanks, AreLoadedByOthers) {
  const auto [ranks, async] = GetParam();
  std::map<std::string, at::Tensor> want;
  run_ranks(ranks.first, [&, async = async](const World& world) {
    TableRun run(world, 17, 1);
    run.rank.step(0);
    const auto weights = run.rank.everything();
    if (world->rank() == 0) want = weights;
    run.save(path, async);
  });
  run_ranks(ranks.second, [&](const World& world) {
    TableRun run(world, 99, 2);
    const LoadedTrainingState loaded = run.load(path);
    EXPECT_TRUE(loaded.model.complete() && loaded.optimizer.complete());
    expect_tables(run.split, 1, *world);
    expect_same(run.rank.everything(), want);
    EXPECT_THAT(loaded.optimizer.loaded, ::testing::Contains("embedding.table.1/squares"));
  });
}
INSTANTIATE_TEST_SUITE_P(All, SplitOverRanks,
                         Combine(Values(std::pair(1, 1), std::pair(2, 3), std::pair(3, 2), std::pair(4, 1),
                                        std::pair(1, 4)),
                                 ::testing::Bool()),
                         [](const auto& info) {
                           const auto ranks = std::get<0>(info.param);
                           return std::to_string(ranks.first) + "_to_" + std::to_string(ranks.second) +
                                  (std::get<1>(info.param) ? "_async" : "_sync");
                         });

TEST_F(SplitTensors, LieInTheFolderAsParametersDo) {
  save_tables();
  const formats::CheckpointFolder saved(path);
  saved.verify();
  const formats::StoredTensor& table = saved.tensor("model/embedding.table.1");
  EXPECT_EQ(table.shape, (std::vector<int64_t>{11, 4}));
  EXPECT_EQ(table.dtype, at::kBFloat16);
  ASSERT_EQ(table.parts.size(), 2u);
  EXPECT_EQ(table.parts[0].end, 6 * 4);
  EXPECT_EQ(saved.tensor("optimizer/embedding.table.0/squares").shape, std::vector<int64_t>{2});
  const nlohmann::json& leaves = saved.manifest().state["optimizer"]["leaves"];
  EXPECT_EQ(leaves["embedding.table.0"], nlohmann::json::object());
}

// ---------------------------------------------------------------- what does not fit

// Expects a load to fail without changing anything.
void expect_refused(TableRun& run, const fs::path& path, const ::testing::Matcher<std::string>& error) {
  const std::vector<SplitTensor> before = run.split;
  std::vector<at::Tensor> rows;
  for (const SplitTensor& tensor : before) rows.push_back(tensor.rows.clone());
  EXPECT_THAT(error_of([&] { run.load(path); }), error);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(same_bits(before[i].rows, rows[i]));
}

TEST_F(SplitTensors, OfOtherSizesOrDtypesAreRefused) {
  save_tables();
  run_ranks(2, [&](const World& world) {
    TableRun run(world, 99, 2);
    run.split[0] = part_on({"embedding.table.0", "", torch::zeros({3, 3})}, *world);
    run.split[3] = part_on({"embedding.table.1", "squares", torch::zeros({11}, at::kDouble)}, *world);
    expect_refused(run, path, HasSubstr("embedding.table.0 is F32 [2, 3], expected F32 [3, 3]"));
    run.split[0] = part_on({"embedding.table.0", "", torch::zeros({2, 3}, at::kBFloat16)}, *world);
    expect_refused(run, path, HasSubstr("embedding.table.0 is F32 [2, 3], expected BF16 [2, 3]"));
    run.split[0] = split_tables(*world, 2)[0];
    expect_refused(run, path, HasSubstr("embedding.table.1/squares is F32 [11], expected F64 [11]"));
    const LoadedTrainingState loaded = run.load(path, {.strict = false});
    EXPECT_TRUE(loaded.model.complete());
    ASSERT_EQ(loaded.optimizer.mismatched.size(), 1u);
    EXPECT_EQ(run.split[3].rows.abs().sum().item<double>(), 0);
    run.split.pop_back();
    std::vector<SplitTensor> rest = split_tables(*world, 1);
    for (size_t i = 0; i < run.split.size(); ++i) EXPECT_TRUE(same_bits(run.split[i].rows, rest[i].rows));
  });
}

TEST_F(SplitTensors, ThatTheRunDoesNotHaveAreRefused) {
  save_tables();
  run_ranks(2, [&](const World& world) {
    TableRun run(world, 99, 2);
    const std::vector<SplitTensor> all = std::exchange(run.split, {});
    expect_refused(run, path,
                   AllOf(HasSubstr("unexpected: embedding.table.0"), HasSubstr("unexpected: embedding.table.1")));
    const LoadedTrainingState none = run.load(path, {.strict = false});
    EXPECT_THAT(none.model.unexpected, ElementsAre("embedding.table.0", "embedding.table.1"));
    EXPECT_THAT(none.optimizer.unexpected, ElementsAre("embedding.table.0", "embedding.table.1"));

    run.split = without_state(all);  // the tables' optimizer has other state
    expect_refused(run, path, HasSubstr("unexpected: embedding.table.1/squares"));
    run.split = {all[0], all[1], all[2]};
    expect_refused(run, path,
                   AllOf(HasSubstr("unexpected: embedding.table.1/squares"), Not(HasSubstr("table.0/squares"))));
    run.split = without_state(all);
    const LoadedTrainingState rows = run.load(path, {}, /*with_optimizer=*/false);  // no optimizer at all
    EXPECT_THAT(rows.model.loaded, ::testing::IsSupersetOf({"embedding.table.0", "embedding.table.1"}));
    EXPECT_THAT(rows.optimizer.loaded, ElementsAre());
    run.split = all;
    const LoadedTrainingState squares = run.load(path, {}, /*with_optimizer=*/false);
    EXPECT_THAT(squares.optimizer.loaded, ElementsAre("embedding.table.0/squares", "embedding.table.1/squares"));
    expect_tables(run.split, 1, *world);
  });
}

TEST_F(SplitTensors, ThatTheFolderDoesNotHaveAreMissed) {
  run_ranks(2, [&](const World& world) {
    TableRun saved(world, 17, 1);
    saved.split = {saved.split[0], saved.split[1], saved.split[2]};
    saved.save(path, false);
    TableRun run(world, 99, 2);
    expect_refused(run, path, HasSubstr("missing: embedding.table.1/squares"));
    run.split.push_back(part_on({"embedding.table.2", "", torch::ones({5, 4})}, *world));
    expect_refused(run, path, HasSubstr("missing: embedding.table.2"));
    const LoadedTrainingState loaded = run.load(path, {.strict = false});
    EXPECT_THAT(loaded.model.missing, ElementsAre("embedding.table.2"));
    EXPECT_THAT(loaded.optimizer.missing, ElementsAre("embedding.table.1/squares"));
    EXPECT_TRUE(same_bits(run.split[0].rows, saved.split[0].rows));
    EXPECT_TRUE(same_bits(run.split[2].rows, saved.split[2].rows));
  });
}

TEST_F(SplitTensors, AreRenamedWithTheModel) {
  save_tables();
  run_ranks(2, [&](const World& world) {
    TableRun run(world, 99, 2);
    for (SplitTensor& tensor : run.split) tensor.name = "arch." + tensor.name;
    const LoadedTrainingState loaded = run.load(path, {.rename = replace_prefix("embedding.", "arch.embedding.")});
    EXPECT_EQ(loaded.model.renamed.at("arch.embedding.table.0"), "embedding.table.0");
    EXPECT_EQ(loaded.optimizer.renamed.at("arch.embedding.table.1/squares"), "embedding.table.1/squares");
    expect_tables(run.split, 1, *world);
    run.split = without_state(run.split);
    EXPECT_THAT(error_of([&] { run.load(path, {.rename = replace_prefix("embedding.", "arch.embedding.")}); }),
                HasSubstr("unexpected: arch.embedding.table.0/squares"));
  });
}

// Checksums find damage; this is a folder that other software wrote.
TEST_F(SplitTensors, NumbersThatNobodyTakesAreRefused) {
  save_tables();
  formats::Manifest manifest = formats::CheckpointFolder(path).manifest();
  manifest.state["optimizer"]["leaves"]["embedding.table.0"]["step"] = 3;
  folder.write("it/manifest.json", manifest_text(std::move(manifest), "manifest"));
  run_ranks(2, [&](const World& world) {
    TableRun run(world, 99, 2);
    expect_refused(run, path, HasSubstr("unexpected: embedding.table.0/step"));
  });
}

// ---------------------------------------------------------------- descriptions that make no sense

TEST_F(SplitTensors, WrongDescriptionsAreNamed) {
  save_tables();
  run_ranks(2, [&](const World& world) {
    TableRun run(world, 17, 2);
    const std::vector<SplitTensor> right = run.split;
    const auto expect_error = [&](const std::function<void()>& change, const std::string& error) {
      run.split = right;
      change();
      EXPECT_THAT(error_of([&] { run.save(path, false); }), AllOf(HasSubstr(error), HasSubstr(path.string())));
    };
    const auto also_when_loading = [&](const std::function<void()>& change, const std::string& error) {
      expect_error(change, error);
      EXPECT_THAT(error_of([&] { run.load(path); }), AllOf(HasSubstr(error), HasSubstr(path.string())));
    };
    SplitTensor& table = run.split[1];
    also_when_loading([&] { table.name = "a.weight"; }, "'a.weight': a parameter, a buffer or another split tensor");
    also_when_loading([&] { table.name = "norm.running_mean"; }, "'norm.running_mean': a parameter, a buffer");
    also_when_loading([&] { table.name = "embedding.table.0"; }, "'embedding.table.0': a parameter, a buffer");
    also_when_loading([&] { table.name = ""; }, "has no name");
    also_when_loading([&] { run.split[3].state = "a/b"; }, "a slash");
    also_when_loading([&] { run.split[3].name = "a.bias"; }, "'a.bias/squares' is state of 'a.bias', which is not");
    also_when_loading([&] { table.rows = at::Tensor(); }, "rows must be a contiguous tensor");
    also_when_loading([&] { table.rows = torch::zeros({4, 11}).t(); }, "rows must be a contiguous tensor");
    also_when_loading([&] { table.sizes = {11, 5}; }, "do not fit into a tensor of sizes [11, 5]");
    also_when_loading([&] { table.sizes = {}; }, "do not fit into a tensor of sizes []");
    also_when_loading([&] { table.begin = 7; }, "from row 7 on do not fit");
    also_when_loading([&] { table.begin = -1; }, "from row -1 on do not fit");
    also_when_loading([&] { table.sizes[0] = int64_t{1} << 62; }, "more than 2^63-1 bytes");
    expect_error(
        [&] {
          if (world->rank() == 1) table.begin = 5;
        },
        "overlap the previous part");
    expect_error(
        [&] {
          if (world->rank() == 0) table.rows = table.rows.narrow(0, 0, 5);
        },
        "elements [20, 24) before them are in no file");
    expect_error([&] { table.sizes[0] = 11 + world->rank(); }, "ranks differ");
    run.split = right;
    run.load(path);  // the old checkpoint is unchanged
    expect_tables(run.split, 1, *world);
  });
}

// ---------------------------------------------------------------- faults

class SplitFaults : public SplitTensors, public ::testing::WithParamInterface<bool> {
 protected:
  // Saves tables 2 while a call fails. Returns the number of ranks that got an error.
  int save_with_fault(FaultyFileSystem& faulty) {
    const formats::FileSystemGuard guard(faulty);
    std::atomic<int> failed{0};
    run_ranks(2, [&](const World& world) {
      TableRun run(world, 17, 2);
      const std::string error = error_of([&] { run.save(path, GetParam(), 2); });
      if (error == "no error") return;
      ++failed;
      EXPECT_THAT(error, AllOf(HasSubstr("No space left on device"), HasSubstr("rank ")));
    });
    return failed;
  }
};

TEST_P(SplitFaults, LeaveTheTablesThatWereThere) {
  run_ranks(2, [&](const World& world) { TableRun(world, 17, 1).save(path, false, 1); });
  bool struck = true;
  int failures = 0;
  for (int64_t call = 1; struck; ++call) {
    SCOPED_TRACE(call);
    ASSERT_LT(call, 100);
    FaultyFileSystem faulty({.error = ENOSPC, .first = call});
    const int failed = save_with_fault(faulty);
    struck = call <= faulty.calls();
    EXPECT_TRUE(failed == 0 || failed == 2);
    EXPECT_TRUE(struck || failed == 0);
    failures += failed > 0 ? 1 : 0;
    EXPECT_THAT(folder.names(), ElementsAre("it"));
    run_ranks(3, [&](const World& world) {
      TableRun run(world, 99, 3);
      const int step = run.load(path).user.at("step");
      EXPECT_TRUE(step == 1 || step == 2);
      expect_tables(run.split, step, *world);
    });
  }
  EXPECT_GT(failures, 5);
}
INSTANTIATE_TEST_SUITE_P(All, SplitFaults, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "async" : "sync"; });

}  // namespace
}  // namespace fsdp::state::split_tensors_test
