// Which rank holds which rows of the embedding tables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/feature_embedding.h"

namespace fsdp::sparse {

// Rows [begin, end) of a table on a rank, which keeps them from row `place` of its memory on.
struct HeldRows {
  int64_t table = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t place = 0;
};

// Where rows are, for each element of the ids.
struct RowAddress {
  at::Tensor owner;  // rank
  at::Tensor place;  // row in the memory of that rank
};

// Each table is cut into contiguous parts of nearly equal size, one for each rank in rank order: of R rows, the first
// R % size ranks hold one more than the others, which hold none where R is less than size. A rank keeps its parts one
// behind another, in the order of tables. Load is even where ids are: a table whose frequent ids come first should be
// shuffled before.
class RowSplit {
 public:
  RowSplit(const models::EmbeddingTables& tables, int size);

  int size() const { return size_; }
  // In all tables.
  int64_t rows_of(int rank) const { return rows_of_[static_cast<size_t>(rank)]; }
  int64_t most_rows() const;
  // One for each table, in order; empty ones too.
  std::vector<HeldRows> held_by(int rank) const;
  // ids: int64 [batch, features], valid.
  RowAddress address_of(const at::Tensor& ids) const;

 private:
  int size_;
  std::vector<int64_t> table_rows_;
  std::vector<int64_t> rows_of_;  // by rank
  at::Tensor share_, longer_;     // by table: rows of each rank, and how many ranks have one more
  at::Tensor first_places_;       // [size * tables]: where a rank keeps its part of a table
};

}  // namespace fsdp::sparse
