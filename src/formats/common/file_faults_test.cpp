// Faults in every system call of a save: the error states the problem and the file, and the existing folder stays
// complete.
#include <torch/torch.h>

#include <cerrno>
#include <cstring>

#include "formats/common/output_file.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/hugging_face/hf_folder_writer.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::file_faults_test {
namespace {

using fsdp::testing::FaultyFileSystem;
using fsdp::testing::FileFault;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using testing::TemporaryFolder;

const std::vector<TensorInfo> kTensors{{"a", torch::kFloat32, {20}}, {"b", torch::kBFloat16, {3, 7}}};

// Saves three files of tensors and an index, with all values equal to `value`.
void save(const std::filesystem::path& path, float value) {
  HfFolderWriter writer(path, {{"model_type", "llama"}}, kTensors, {.max_shard_size = 30, .tokenizer_source = {}});
  for (const TensorInfo& tensor : kTensors) writer.write(tensor.name, torch::full(tensor.shape, value));
  writer.finish();
}

// Returns the value that all tensors of a folder have.
float saved_value(const std::filesystem::path& path) {
  const HfFolder folder(path);
  folder.check_tensors(kTensors);
  const float value = folder.tensor("a")[0].item<float>();
  for (const TensorInfo& tensor : kTensors) {
    EXPECT_TRUE((folder.tensor(tensor.name) == value).all().item<bool>()) << tensor.name;
  }
  return value;
}

// The outcome of saving 2 over a folder with the value 1, with a fault. `error` is kNoError if there was none.
struct Attempt {
  std::string error;
  int64_t calls = 0;
  float left = 0;
  std::vector<std::string> names;
};
Attempt save_over(const FileFault& fault) {
  const TemporaryFolder folder;
  save(folder / "model", 1);
  Attempt attempt;
  FaultyFileSystem faulty(fault);
  {
    const FileSystemGuard guard(faulty);
    attempt.error = error_of([&] { save(folder / "model", 2); });
  }
  attempt.calls = faulty.calls();
  attempt.left = saved_value(folder / "model");
  attempt.names = folder.names();
  return attempt;
}

class EveryCall : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Errors, EveryCall, ::testing::Values(ENOSPC, EDQUOT, EIO, EROFS, EACCES),
                         [](const auto& info) { return std::string(::strerrorname_np(info.param)); });

TEST_P(EveryCall, FailsOnceAndIsNamed) {
  const int64_t calls = save_over({.first = 0}).calls;
  ASSERT_GT(calls, 20);
  int64_t failed = 0;
  for (int64_t call = 1; call <= calls; ++call) {
    SCOPED_TRACE(call);
    const Attempt attempt = save_over({.error = GetParam(), .first = call});
    EXPECT_THAT(attempt.names, ElementsAre("model"));  // nothing else is left
    if (attempt.error == kNoError) {
      EXPECT_EQ(attempt.left, 2);  // the save found another way
      continue;
    }
    ++failed;
    EXPECT_THAT(attempt.error, AllOf(HasSubstr(std::strerror(GetParam())), HasSubstr("fsdp-test-")));
    // The last two calls flush the folder's new name to the disk; by then, the new folder is in place.
    EXPECT_EQ(attempt.left, call <= calls - 2 ? 1 : 2);
  }
  EXPECT_GE(failed, calls - 1);
}

TEST_P(EveryCall, FailsFromThenOn) {
  const int64_t calls = save_over({.first = 0}).calls;
  for (int64_t call = 1; call <= calls; ++call) {
    SCOPED_TRACE(call);
    const Attempt attempt = save_over({.error = GetParam(), .first = call, .lasts = true});
    EXPECT_THAT(attempt.error, HasSubstr(std::strerror(GetParam())));
    EXPECT_EQ(attempt.left, call <= calls - 2 ? 1 : 2);
  }
}

TEST(Writing, ContinuesAfterShortWritesAndInterruptions) {
  const int64_t calls = save_over({.first = 0}).calls;
  for (int64_t call = 1; call <= calls; ++call) {
    SCOPED_TRACE(call);
    for (const FileFault& fault : {FileFault{.kind = FileFault::Kind::kShort, .first = call},
                                   FileFault{.kind = FileFault::Kind::kShort, .first = call, .lasts = true},
                                   FileFault{.error = EINTR, .first = call}}) {
      const Attempt attempt = save_over(fault);
      EXPECT_EQ(attempt.error, kNoError);
      EXPECT_EQ(attempt.left, 2);
      EXPECT_THAT(attempt.names, ElementsAre("model"));
    }
  }
}

TEST(RemoveTree, TakesEverythingAndFollowsNoLink) {
  const TemporaryFolder folder;
  const auto kept = folder.write("kept/file", "x");
  folder.write("tree/a/b/c", "x");
  folder.write("tree/d", "x");
  std::filesystem::create_directory_symlink(folder / "kept", folder / "tree/link");
  EXPECT_TRUE(remove_tree(folder / "tree"));
  EXPECT_THAT(folder.names(), ElementsAre("kept"));
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_FALSE(remove_tree(folder / "tree"));
}

TEST(MakeFolders, NamesTheOneThatCannotBeMade) {
  const TemporaryFolder folder;
  make_folders(folder / "a/b/c/");
  make_folders(folder / "a/b/c");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  folder.write("file", "x");
  EXPECT_THAT(error_of([&] { make_folders(folder / "file/below"); }), HasSubstr("file"));
}

}  // namespace
}  // namespace fsdp::formats::file_faults_test
