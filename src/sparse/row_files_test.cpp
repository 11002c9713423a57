// Tests rows that are saved by some ranks and loaded by others.
#include "sparse/row_files.h"
#include "support/files/temporary_folder.h"

#include "fsdp/backends.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::sparse::row_files_test {
namespace {

using fsdp::testing::error_of;
using fsdp::testing::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::shared_ptr<SplitEmbedding> tables_over(std::shared_ptr<Communicator> comm, uint64_t seed,
                                            std::vector<int64_t> rows = {2, 12, 31}) {
  return std::make_shared<SplitEmbedding>(std::move(comm), models::EmbeddingTables{std::move(rows), 5, seed});
}

at::Tensor step_with(const std::shared_ptr<SplitEmbedding>& embedding, RowOptimizer& optimizer, int rank) {
  const auto ids = (torch::arange(12).view({4, 3}) * 5 + rank).remainder(torch::tensor({2, 12, 31}));
  const auto rows = embedding->forward(ids);
  rows.square().sum().backward();
  optimizer.step();
  return rows.detach();
}

std::vector<at::Tensor> state_of(const SplitEmbedding& embedding, const RowOptimizer& optimizer) {
  return {embedding.weight().detach(), optimizer.squares()};
}

void save_after_a_step(const TemporaryFolder& folder, int size) {
  run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
    const auto embedding = tables_over(comm, 1);
    RowOptimizer optimizer(embedding, {});
    step_with(embedding, optimizer, 0);
    save_rows(folder.path(), *embedding, &optimizer);
  });
}

TEST(RowFiles, AreLoadedIntoAnyNumberOfRanks) {
  for (int saved : {1, 3, 4}) {
    const TemporaryFolder folder;
    save_after_a_step(folder, saved);
    for (int size : {1, 2, 3, 4}) {
      run_ranks(size, [&](std::shared_ptr<Communicator> comm) {
        const auto want = tables_over(comm, 1), got = tables_over(comm, 2);
        RowOptimizer want_optimizer(want, {}), got_optimizer(got, {});
        step_with(want, want_optimizer, 0);
        load_rows(folder.path(), *got, &got_optimizer);
        const auto wanted = state_of(*want, want_optimizer), loaded = state_of(*got, got_optimizer);
        for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(torch::allclose(loaded[i], wanted[i], 1e-6, 1e-7));
        EXPECT_GT(got_optimizer.squares().sum().item<float>(), 0.f);
      });
    }
  }
}

class BadFolders : public ::testing::Test {
 protected:
  BadFolders() { save_after_a_step(folder_, 2); }
  std::string error_of_loading(std::vector<int64_t> rows = {2, 12, 31}) {
    const auto embedding = tables_over(make_fake_communicator(0, 1), 2, std::move(rows));
    return error_of([&] { load_rows(folder_.path(), *embedding); });
  }
  TemporaryFolder folder_;
};

TEST_F(BadFolders, AreNamed) {
  EXPECT_EQ(error_of_loading(), "no error");
  EXPECT_THAT(error_of_loading({2, 12, 30}), AllOf(HasSubstr("table.2 has 31 rows, expected 30")));
  EXPECT_THAT(error_of_loading({2, 12, 31, 1}), HasSubstr("has no tensor table.3"));
  std::filesystem::remove(folder_ / "rows-1-of-2.safetensors");
  EXPECT_THAT(error_of_loading(), HasSubstr("rows-1-of-2.safetensors is missing"));
  folder_.write("rows-0-of-3.safetensors", "x");
  EXPECT_THAT(error_of_loading(), HasSubstr("rows of several saves"));
  std::filesystem::remove(folder_ / "rows-0-of-2.safetensors");
  std::filesystem::remove(folder_ / "rows-0-of-3.safetensors");
  EXPECT_THAT(error_of_loading(), HasSubstr("has no files rows-R-of-N.safetensors"));
}

// One file replaces another one: its rows exist twice, other rows not at all.
TEST_F(BadFolders, RowsThatAreInNoFileAreCounted) {
  const auto replace = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(folder_ / "rows-0-of-2.safetensors", folder_ / "rows-1-of-2.safetensors", replace);
  const auto embedding = tables_over(make_fake_communicator(1, 2), 2);
  EXPECT_THAT(error_of([&] { load_rows(folder_.path(), *embedding); }),
              HasSubstr("the files hold 0 of the 1 rows of table.0 from row 1 on"));
}

TEST_F(BadFolders, SquaresThatWereNotSavedAreMissed) {
  const auto embedding = tables_over(make_fake_communicator(0, 1), 2);
  const TemporaryFolder without;
  save_rows(without.path(), *embedding);
  RowOptimizer optimizer(embedding, {});
  EXPECT_THAT(error_of([&] { load_rows(without.path(), *embedding, &optimizer); }),
              HasSubstr("has no tensor table.0.squares"));
}

}  // namespace
}  // namespace fsdp::sparse::row_files_test
