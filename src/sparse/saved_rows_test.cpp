// Tests split tables as a checkpoint sees them; tests/dhen_checkpoint_test.cpp saves and loads them.
#include "sparse/saved_rows.h"

#include "fsdp/backends.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::sparse::saved_rows_test {
namespace {

using fsdp::testing::run_ranks;

std::shared_ptr<SplitEmbedding> tables_over(std::shared_ptr<Communicator> comm) {
  SplitEmbeddingOptions options;
  options.dtype = at::kBFloat16;
  options.name = "net.tables";
  return std::make_shared<SplitEmbedding>(std::move(comm), models::EmbeddingTables{{2, 12}, 5, 1}, options);
}

TEST(SavedRows, AreViewsOfTheRanksTables) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    const auto embedding = tables_over(comm);
    const RowOptimizer optimizer(embedding, {RowRule::kRowWiseAdagrad, 0.1});
    const std::vector<SplitTensor> split = rows_to_save(*embedding, &optimizer);
    ASSERT_EQ(split.size(), 4u);
    EXPECT_EQ(split[1].name, "net.tables.table.1");
    EXPECT_EQ(split[1].state, "");
    EXPECT_EQ(split[1].sizes, (std::vector<int64_t>{12, 5}));
    EXPECT_EQ(split[1].begin, 4 * comm->rank());
    EXPECT_EQ(split[1].rows.sizes(), (at::IntArrayRef{4, 5}));
    EXPECT_EQ(split[0].rows.size(0), comm->rank() < 2 ? 1 : 0);
    EXPECT_EQ(split[3].name, "net.tables.table.1");
    EXPECT_EQ(split[3].state, "squares");
    EXPECT_EQ(split[3].sizes, std::vector<int64_t>{12});
    for (const SplitTensor& tensor : split) tensor.rows.fill_(7);
    EXPECT_TRUE(embedding->weight().eq(7).all().item<bool>());
    EXPECT_TRUE(optimizer.squares().eq(7).all().item<bool>());
  });
}

TEST(SavedRows, HaveNoSquaresWithoutThem) {
  const auto embedding = tables_over(make_fake_communicator(0, 1));
  const RowOptimizer optimizer(embedding, {RowRule::kSgd, 0.1});
  EXPECT_EQ(rows_to_save(*embedding, &optimizer).size(), 2u);
  EXPECT_EQ(rows_to_save(*embedding).size(), 2u);
}

}  // namespace
}  // namespace fsdp::sparse::saved_rows_test
