// Assigns the rows of the embedding tables to ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/feature_embedding.h"

namespace fsdp::sparse {

// Rows [begin, end) of a table on a rank, which stores them from row `place` of its memory on.
struct HeldRows {
  int64_t table = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t place = 0;
};

// The locations of rows, for each element of the ids.
struct RowAddress {
  at::Tensor owner;  // rank
  at::Tensor place;  // row in the memory of that rank
};

// Each table is cut into contiguous parts of nearly equal size, one for each rank in rank order: of R rows, the first R
// % size ranks hold one more than the others, which hold none if R is less than size. A rank stores its parts one after
// another, in the order of tables. The load is balanced if the ids are evenly distributed: a table whose frequent ids
// come first should be shuffled before.
class RowSplit {
 public:
  RowSplit(const models::EmbeddingTables& tables, int size);

  int size() const { return size_; }
  // Returns the number of rows of a rank in all tables together.
  int64_t rows_of(int rank) const { return rows_of_[static_cast<size_t>(rank)]; }
  int64_t most_rows() const;
  // Returns one entry for each table, in order, also for empty parts.
  std::vector<HeldRows> held_by(int rank) const;
  // `ids` is int64 [batch, features] with valid ids.
  RowAddress address_of(const at::Tensor& ids) const;

 private:
  int size_;
  std::vector<int64_t> table_rows_;
  std::vector<int64_t> rows_of_;  // by rank
  at::Tensor share_, longer_;     // by table: rows of each rank, number of ranks with one more
  at::Tensor first_places_;       // [size * tables]: where a rank stores its part of a table
};

}  // namespace fsdp::sparse
