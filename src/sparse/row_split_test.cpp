#include "sparse/row_split.h"

namespace fsdp::sparse::row_split_test {
namespace {

// Every row of every table is on one rank, at the place that its address names.
TEST(RowSplit, AddressesAreWhereRowsAreHeld) {
  const models::EmbeddingTables tables{{1, 3, 12, 31, 2}, 4, 0};
  for (int size : {1, 2, 3, 4, 7, 40}) {
    const RowSplit split(tables, size);
    std::vector<std::vector<int>> seen;
    for (int64_t rows : tables.rows) seen.emplace_back(static_cast<size_t>(rows));
    int64_t most = 0;
    for (int rank = 0; rank < size; ++rank) {
      int64_t held_rows = 0;
      for (const HeldRows& held : split.held_by(rank)) {
        for (int64_t row = held.begin; row < held.end; ++row) {
          ++seen[static_cast<size_t>(held.table)][static_cast<size_t>(row)];
          at::Tensor ids = torch::zeros({1, 5}, at::kLong);
          ids[0][held.table] = row;
          const RowAddress address = split.address_of(ids);
          EXPECT_EQ(address.owner[0][held.table].item<int64_t>(), rank);
          EXPECT_EQ(address.place[0][held.table].item<int64_t>(), held.place + row - held.begin);
        }
        EXPECT_EQ(held.place, held_rows);
        held_rows += held.end - held.begin;
      }
      EXPECT_EQ(held_rows, split.rows_of(rank));
      most = std::max(most, held_rows);
    }
    EXPECT_EQ(most, split.most_rows());
    for (const auto& table : seen) EXPECT_THAT(table, ::testing::Each(1));
  }
}

// Tables with 768 billion numbers: nothing is allocated for rows, and products do not overflow.
TEST(RowSplit, OfTablesThatFitNowhere) {
  const models::EmbeddingTables tables{{3'000'000'000, 3'000'000'001}, 128, 0};
  const RowSplit split(tables, 512);
  const RowAddress last = split.address_of(torch::tensor({{2'999'999'999, 3'000'000'000}}));
  EXPECT_TRUE(torch::equal(last.owner, torch::tensor({{511, 511}})));
  EXPECT_EQ(last.place[0][1].item<int64_t>(), split.rows_of(511) - 1);
}

}  // namespace
}  // namespace fsdp::sparse::row_split_test
