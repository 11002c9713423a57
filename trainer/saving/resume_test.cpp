// Tests that interrupted and resumed runs end with the same results as uninterrupted runs, bit by bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/rand.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "config/errors.h"
#include "saving/checkpoint_list.h"
#include "saving/start_point.h"
#include "saving/stop_signal.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "testing/tiny_llama.h"
#include "testing/whole_run.h"

namespace fsdp::trainer::resume_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Variant {
  const char* name;
  std::function<void(Config&)> change;
};

// Returns a config of six steps, which is more than one epoch with 3 ranks.
Config long_run(const testing::TemporaryFolder& folder) {
  write_tiny_llama(folder.path("model"), /*tied=*/true, /*seed=*/11);
  Config config = small_run(folder);
  config.data.dataset = "dummy:29";
  config.steps.max_steps = 6;
  return config;
}

std::vector<std::string> names_of_checkpoints(const testing::TemporaryFolder& folder, const std::string& output) {
  std::vector<std::string> names;
  for (const auto& saved : saved_checkpoints(folder.path(output))) names.push_back(saved.path.filename().string());
  return names;
}

void expect_same(const Left& got, const Left& want) {
  EXPECT_EQ(got.metrics, want.metrics);
  EXPECT_FALSE(want.weights.empty());
  EXPECT_TRUE(got.weights == want.weights);
}

class Resuming : public ::testing::TestWithParam<Variant> {};

TEST_P(Resuming, IsAsIfNothingHadHappened) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  GetParam().change(config);
  for (int world_size : {1, 3}) {
    SCOPED_TRACE(world_size);
    const std::string number = std::to_string(world_size);
    const Left want = run_whole(config, folder, "whole" + number, world_size);
    EXPECT_EQ(want.metrics.size(), 7U);

    Config saving = config;
    saving.checkpoints.save_steps = 2;
    expect_same(run_whole(saving, folder, "saving" + number, world_size), want);
    EXPECT_THAT(names_of_checkpoints(folder, "saving" + number),
                ElementsAre("checkpoint-2", "checkpoint-4", "checkpoint-6"));

    // A run that is killed between steps 4 and 6, and one that continues in another folder.
    fs::remove_all(checkpoint_path(folder.path("saving" + number), 6));
    saving.checkpoints.resume_from_checkpoint = "latest";
    expect_same(run_whole(saving, folder, "saving" + number, world_size), want);
    Config elsewhere = config;
    elsewhere.checkpoints.resume_from_checkpoint = checkpoint_path(folder.path("saving" + number), 2).string();
    const Left got = run_whole(elsewhere, folder, "elsewhere" + number, world_size);
    Left rest = want;
    rest.metrics.erase("00001");
    rest.metrics.erase("00002");
    expect_same(got, rest);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, Resuming,
                         ::testing::Values(Variant{"plain", [](Config&) {}},
                                           Variant{"fp16",
                                                   [](Config& c) {
                                                     c.precision.dtype = c10::kHalf;
                                                     c.precision.fp16_init_scale = 1e30;
                                                     c.precision.fp16_growth_interval = 2;
                                                   }},
                                           Variant{"flat_from_rank_0",
                                                   [](Config& c) {
                                                     c.sharding.use_orig_params = false;
                                                     c.sharding.sync_module_states = true;
                                                   }},
                                           Variant{"sgd",
                                                   [](Config& c) {
                                                     c.optimizer.name = "sgd";
                                                     c.optimizer.sgd_momentum = 0.9;
                                                   }},
                                           Variant{"sgd_without_state", [](Config& c) { c.optimizer.name = "sgd"; }},
                                           Variant{"files", [](Config& c) { c.sharding.offload_path = c.model.path; }},
                                           Variant{"asynchronous_bf16",
                                                   [](Config& c) {
                                                     c.precision.master_dtype = c.precision.dtype = c10::kBFloat16;
                                                     c.checkpoints.async_save = true;
                                                   }},
                                           Variant{"automatic",
                                                   [](Config& c) {
                                                     c.sharding.wrap_policy = UnitsBy::kAutoUnits;
                                                     c.sharding.auto_units_target_bytes = 4000;
                                                     c.steps.gradient_accumulation_steps = 2;
                                                   }}),
                         [](const auto& info) { return std::string(info.param.name); });

// ---------------------------------------------------------------- other numbers of ranks

double loss_of(const Left& left, const char* step) { return nlohmann::json::parse(left.metrics.at(step)).at("loss"); }

TEST(ResumingWithOtherRanks, TakesTheSameSamples) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 3;
  const Left want = run_whole(config, folder, "two", 2);
  config.checkpoints.resume_from_checkpoint = checkpoint_path(folder.path("two"), 3).string();
  config.data.train_batch_size = 4;
  ::testing::internal::CaptureStdout();
  const Left got = run_whole(config, folder, "one", 1);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("saved after step 3"), HasSubstr("train_batch_size: 4, was 2"),
                    HasSubstr("saved by 2 rank(s): random numbers are seeded anew"),
                    ::testing::Not(HasSubstr("are skipped, because the global batch"))));
  EXPECT_EQ(got.metrics.count("00003"), 0U);
  for (const char* step : {"00004", "00005", "00006"})
    EXPECT_NEAR(loss_of(got, step), loss_of(want, step), 1e-5) << step;
}

TEST(ResumingWithOtherRanks, SaysWhichSamplesAreLeftOut) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 3;
  run_whole(config, folder, "two", 2);
  config.checkpoints.resume_from_checkpoint = checkpoint_path(folder.path("two"), 3).string();
  ::testing::internal::CaptureStdout();
  run_whole(config, folder, "four", 4);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("4 samples of epoch 0 are skipped"));
  config.data.dataset = "dummy:30";
  ::testing::internal::CaptureStdout();
  run_whole(config, folder, "other data", 2);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("dataset: \"dummy:30\", was \"dummy:29\""), HasSubstr("continues at its first sample")));
}

// A Llama draws no random numbers, so the generators end in the state of the checkpoint, whatever the config's seed is.
TEST(ResumingWithTheSameRanks, RestoresRandomNumbers) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 3;
  run_whole(config, folder, "first", 1);
  config.checkpoints.resume_from_checkpoint = checkpoint_path(folder.path("first"), 3).string();
  at::manual_seed(static_cast<uint64_t>(config.steps.seed));
  const at::Tensor want = at::rand({3});
  config.steps.seed = 5;
  run_whole(config, folder, "second", 1);
  EXPECT_TRUE(at::rand({3}).equal(want));
  run_whole(config, folder, "third", 2);
  EXPECT_FALSE(at::rand({3}).equal(want));
}

// ---------------------------------------------------------------- where a run starts

class Starting : public ::testing::Test {
 protected:
  Starting() {
    config_ = long_run(folder_);
    config_.output.output_dir = folder_.path("out");
    config_.steps.max_steps = 3;
    config_.checkpoints.save_steps = 1;
    config_.output.do_eval = config_.output.save_final = false;
  }
  std::string error() const {
    return testing::error_of([&] { choose_start(config_); });
  }

  testing::TemporaryFolder folder_;
  Config config_;
};

TEST_F(Starting, WithTheLatestOrFromTheBeginning) {
  EXPECT_EQ(choose_start(config_).checkpoint, std::nullopt);
  EXPECT_THAT(choose_start(config_).texts, ::testing::IsEmpty());
  config_.checkpoints.resume_from_checkpoint = "latest";
  EXPECT_EQ(choose_start(config_).checkpoint, std::nullopt);
  EXPECT_THAT(choose_start(config_).texts,
              ElementsAre(AllOf(HasSubstr("there is no checkpoint in"), HasSubstr("from the beginning"))));
  run_whole(config_, folder_, "out", 1);
  EXPECT_EQ(choose_start(config_).checkpoint, checkpoint_path(config_.output.output_dir, 3));
  ::testing::internal::CaptureStdout();
  run_whole(config_, folder_, "out", 1);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("nothing is left to train: max_steps is 3"));
}

TEST_F(Starting, NeverMixesTheCheckpointsOfTwoRuns) {
  run_whole(config_, folder_, "out", 1);
  EXPECT_THAT(error(), AllOf(HasSubstr("resume_from_checkpoint"), HasSubstr("null"), HasSubstr("checkpoint-3"),
                             HasSubstr("\"latest\""), HasSubstr("overwrite_output_dir")));
  config_.checkpoints.resume_from_checkpoint = checkpoint_path(config_.output.output_dir, 2).string();
  EXPECT_THAT(error(), AllOf(HasSubstr("would resume after step 2"), HasSubstr("checkpoint-3")));
  config_.checkpoints.save_steps = std::nullopt;
  EXPECT_EQ(choose_start(config_).checkpoint, checkpoint_path(config_.output.output_dir, 2));
}

TEST_F(Starting, ReplacesAnEarlierRunOnlyWhenToldTo) {
  config_.output.save_final = true;
  run_whole(config_, folder_, "out", 1);
  EXPECT_THAT(error(), AllOf(HasSubstr("checkpoint-1, checkpoint-2, checkpoint-3, final"), HasSubstr("latest"),
                             HasSubstr("overwrite_output_dir")));
  config_.checkpoints.save_steps = std::nullopt;  // also for a run that saves no checkpoints
  EXPECT_THAT(error(), HasSubstr("checkpoint-3"));
  config_.output.overwrite_output_dir = true;
  ::testing::internal::CaptureStdout();
  run_whole(config_, folder_, "out", 2);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("overwrite_output_dir: removed "));
  EXPECT_THAT(names_of_checkpoints(folder_, "out"), ElementsAre());
  EXPECT_FALSE(fs::exists(folder_.path("out/metrics-1.jsonl")));
  config_.output.overwrite_output_dir = false;
  EXPECT_THAT(error(), HasSubstr("has final of an earlier run"));
  config_.output.save_final = false;
  const std::string metrics = folder_.read("out/metrics.jsonl");
  for (const char* kept : {"out/metrics-1.jsonl", "out/metrics-2.jsonl"}) {
    ::testing::internal::CaptureStdout();
    run_whole(config_, folder_, "out", 1);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("is kept as " + folder_.path(kept)));
  }
  EXPECT_EQ(folder_.read("out/metrics-1.jsonl"), metrics);
}

TEST_F(Starting, ARunFromElsewhereReplacesNothingEither) {
  run_whole(config_, folder_, "out", 1);
  run_whole(config_, folder_, "other", 1);
  config_.checkpoints.resume_from_checkpoint = checkpoint_path(folder_.path("other"), 3).string();
  config_.steps.max_steps = 4;
  EXPECT_THAT(error(), AllOf(HasSubstr("checkpoint-3 of an earlier run"), HasSubstr("overwrite_output_dir")));
  config_.output.overwrite_output_dir = true;
  run_whole(config_, folder_, "out", 1);
  EXPECT_THAT(names_of_checkpoints(folder_, "out"), ElementsAre("checkpoint-4"));
  EXPECT_THAT(names_of_checkpoints(folder_, "other"), ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
  fs::create_symlink(checkpoint_path(config_.output.output_dir, 4), folder_.path("link"));
  for (const std::string& path : {checkpoint_path(config_.output.output_dir, 4).string(),
                                  checkpoint_path(config_.output.output_dir, 4).string() + "/", folder_.path("link")}) {
    config_.checkpoints.resume_from_checkpoint = path;
    EXPECT_THAT(error(), HasSubstr("which \"overwrite_output_dir\" would clear")) << path;
  }
}

// ---------------------------------------------------------------- damaged checkpoints

void flip_a_byte(const fs::path& file) {
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(middle);
  const char byte = static_cast<char>(stream.get());
  stream.seekp(middle);
  stream.put(static_cast<char>(byte ^ 1));
}

const char* const kOneFile = "rank-00000-of-00001.safetensors";

TEST_F(Starting, TheNewestSoundCheckpointIsTheLatest) {
  config_.steps.max_steps = 5;
  const Left want = run_whole(config_, folder_, "out", 1);
  const auto path = [&](int step) { return checkpoint_path(config_.output.output_dir, step); };
  fs::resize_file(path(5) / kOneFile, 100);
  flip_a_byte(path(4) / kOneFile);
  fs::remove(path(3) / "manifest.json");
  config_.checkpoints.resume_from_checkpoint = "latest";
  EXPECT_EQ(choose_start(config_).checkpoint, path(4));  // the damage is found when the file is read
  EXPECT_TRUE(fs::exists(path(5)));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_whole(config_, folder_, "out", 2).metrics.size(), want.metrics.size());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("DAMAGED: " + (path(5) / kOneFile).string()), HasSubstr("DAMAGED: " + path(4).string()),
                    HasSubstr("checkpoint-5 is set aside as "), HasSubstr("damaged-checkpoint-4"),
                    HasSubstr("checkpoint-3 is ignored: it has no manifest.json"),
                    HasSubstr("resuming from " + path(2).string()), HasSubstr("saved after step 2")));
  EXPECT_THAT(names_of_checkpoints(folder_, "out"),
              ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4", "checkpoint-5"));
}

TEST_F(Starting, WithNoSoundCheckpointIsAnError) {
  config_.steps.max_steps = 2;
  run_whole(config_, folder_, "out", 1);
  const auto file = [&](int step) { return checkpoint_path(config_.output.output_dir, step) / kOneFile; };
  fs::resize_file(file(2), 100);
  config_.checkpoints.resume_from_checkpoint = checkpoint_path(config_.output.output_dir, 2).string();
  EXPECT_THAT(error(), AllOf(HasSubstr("checkpoint-2"), HasSubstr("checkpoint-1 next to it is intact")));
  flip_a_byte(file(1));
  config_.checkpoints.resume_from_checkpoint = "latest";
  EXPECT_THAT(testing::error_of([&] { run_whole(config_, folder_, "out", 2); }),
              AllOf(HasSubstr("no checkpoint is intact"), HasSubstr("damaged-checkpoint-1")));
  EXPECT_THAT(names_of_checkpoints(folder_, "out"), ElementsAre());
  fs::resize_file(folder_.path("out/damaged-checkpoint-1/") + kOneFile, 100);
  fs::rename(folder_.path("out/damaged-checkpoint-1"), checkpoint_path(config_.output.output_dir, 1));
  EXPECT_THAT(error(), AllOf(HasSubstr("no checkpoint is intact"), HasSubstr("remove the damaged ones")));
}

// ---------------------------------------------------------------- data

TEST(ResumingWithOtherData, OfTheSameNameAndSizeBeginsAnew) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  const auto write = [&](char first) {
    std::string tokens(18 * 40, '\0');
    for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = static_cast<char>(first + static_cast<char>(i / 2 % 90));
    folder.write("tokens.bin", tokens);
  };
  write(1);
  config.data.dataset = folder.path("tokens.bin");
  config.checkpoints.save_steps = 3;
  run_whole(config, folder, "first", 2);
  config.checkpoints.resume_from_checkpoint = checkpoint_path(folder.path("first"), 3).string();
  const auto said = [&](const std::string& name) {
    ::testing::internal::CaptureStdout();
    run_whole(config, folder, name, 2);
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(said("same"), ::testing::Not(HasSubstr("training data")));
  write(2);
  EXPECT_THAT(said("changed"), AllOf(HasSubstr("tokens.bin has changed"), HasSubstr("continues at its first sample")));
}

TEST_F(Starting, NamesAFolderThatIsNoCheckpoint) {
  config_.checkpoints.resume_from_checkpoint = folder_.path("nothing");
  EXPECT_THAT(error(), AllOf(HasSubstr("resume_from_checkpoint"), HasSubstr("nothing"), HasSubstr("no manifest.json")));
  config_.checkpoints.resume_from_checkpoint = config_.model.path;
  EXPECT_THAT(error(), AllOf(HasSubstr("model"), HasSubstr("no manifest.json")));
}

// ---------------------------------------------------------------- signals, full disks, limits

TEST(Leaving, SavesAtTheStepOfTheSignal) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  const Left want = run_whole(config, folder, "whole", 2);
  config.checkpoints.save_steps = 100;
  for (bool async : {false, true}) {
    const std::string name = async ? "async" : "sync";
    config.checkpoints.async_save = async;
    config.checkpoints.resume_from_checkpoint = std::nullopt;
    // An outer handler of this process, because the signal comes before the run's own handler exists.
    const StopSignal outer;
    std::raise(SIGTERM);
    const Left left = run_whole(config, folder, name, 2);
    EXPECT_EQ(left.end, RunEnd::kTerminated);
    EXPECT_EQ(left.metrics.size(), 1U);
    EXPECT_THAT(names_of_checkpoints(folder, name), ElementsAre("checkpoint-1"));
  }
  config.checkpoints.resume_from_checkpoint = "latest";
  expect_same(run_whole(config, folder, "sync", 2), want);
  expect_same(run_whole(config, folder, "async", 2), want);
}

TEST(Leaving, SoDoSignalsOfTerminalsAndSchedulers) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 100;
  for (const auto& [signal, name] :
       std::map<int, std::string>{{SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}}) {
    const StopSignal outer;
    std::raise(signal);
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run_whole(config, folder, name, 2).end, RunEnd::kTerminated);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr(name + ": stopping after step 1"));
    EXPECT_THAT(names_of_checkpoints(folder, name), ElementsAre("checkpoint-1"));
  }
}

TEST(Leaving, ASecondInterruptEndsTheRunAtOnce) {
  const auto twice = [] {
    const StopSignal signal;
    std::raise(SIGINT);
    std::raise(SIGTERM);
    std::raise(SIGINT);
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGINT), "");
  const auto ignored = [] {
    std::signal(SIGHUP, SIG_IGN);
    const StopSignal signal;
    std::raise(SIGHUP);
    std::_Exit(signal.received().empty() ? 0 : 1);
  };
  EXPECT_EXIT(ignored(), ::testing::ExitedWithCode(0), "");
}

TEST(FailedSaves, AreSaidAndTrainingGoesOn) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  const Left want = run_whole(config, folder, "whole", 2);
  config.checkpoints.save_steps = 2;
  for (bool async : {false, true}) {
    const std::string name = async ? "async" : "sync";
    config.checkpoints.async_save = async;
    testing::FaultyFileSystem faulty({.error = ENOSPC, .first = 3});
    const formats::FileSystemGuard guard(faulty);
    ::testing::internal::CaptureStdout();
    expect_same(run_whole(config, folder, name, 2), want);
    EXPECT_THAT(::testing::internal::GetCapturedStdout(),
                AllOf(HasSubstr("checkpoint-2 failed: rank "), HasSubstr("No space left on device"),
                      HasSubstr("existing checkpoints are kept"), HasSubstr("saved the checkpoint")));
    EXPECT_THAT(names_of_checkpoints(folder, name), ElementsAre("checkpoint-4", "checkpoint-6"));
  }
}

// Fails the first write, after a delay in which training reaches the next save.
class LateFault final : public formats::FileSystem {
 public:
  ssize_t pwrite(int file, const void* data, size_t size, off_t offset) override {
    if (has_failed_.exchange(true)) return FileSystem::pwrite(file, data, size, offset);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    errno = ENOSPC;
    return -1;
  }

 private:
  std::atomic<bool> has_failed_{false};
};

// The failure of one asynchronous save is found when the next one begins, which is saved nevertheless.
TEST(FailedSaves, CostNoOtherSave) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 1;
  config.checkpoints.async_save = true;
  config.steps.max_steps = 2;
  LateFault faulty;
  const formats::FileSystemGuard guard(faulty);
  run_whole(config, folder, "out", 1);
  EXPECT_THAT(names_of_checkpoints(folder, "out"), ElementsAre("checkpoint-2"));
}

TEST(FailedSaves, OfTheLastStepFailTheRunAtItsEnd) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 4;
  config.output.save_final = false;
  testing::FaultyFileSystem faulty({.error = EIO, .first = 1, .lasts = true});
  const formats::FileSystemGuard guard(faulty);
  EXPECT_THAT(testing::error_of([&] { run_whole(config, folder, "out", 1); }),
              AllOf(HasSubstr("checkpoint-6 failed"), HasSubstr("Input/output error")));
  EXPECT_THAT(folder.read("out/metrics.jsonl"), HasSubstr("eval_loss"));
  EXPECT_THAT(names_of_checkpoints(folder, "out"), ElementsAre());
}

TEST(OldCheckpoints, AreRemovedBeyondTheLimit) {
  testing::TemporaryFolder folder;
  Config config = long_run(folder);
  config.checkpoints.save_steps = 1;
  config.checkpoints.save_total_limit = 2;
  for (bool async : {false, true}) {
    config.checkpoints.async_save = async;
    const std::string name = async ? "async" : "sync";
    fs::create_directories(folder.path(name + "/.checkpoint-3.tmp-77-0/inner"));
    fs::create_directories(folder.path(name + "/.checkpoint-notes"));
    run_whole(config, folder, name, 2);
    EXPECT_THAT(names_of_checkpoints(folder, name), ElementsAre("checkpoint-5", "checkpoint-6"));
    EXPECT_FALSE(fs::exists(folder.path(name + "/.checkpoint-3.tmp-77-0")));
    EXPECT_TRUE(fs::exists(folder.path(name + "/.checkpoint-notes")));
  }
}

}  // namespace
}  // namespace fsdp::trainer::resume_test
