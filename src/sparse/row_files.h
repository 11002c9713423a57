// Saves rows of split embedding tables to a folder. Any number of ranks can write them, and any other number can read
// them.
//
// Each rank that writes makes one safetensors file, rows-R-of-N.safetensors, with the tensors "table.T" [n, width] and,
// for an optimizer that keeps squares, "table.T.squares" [n]. The metadata "table.T.begin" and "table.T.rows" contain
// the index of the first row and the number of rows of the whole table.
#pragma once

#include <filesystem>

#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"

namespace fsdp::sparse {

// Writes this rank's file, which gets its name only when it is complete and on the disk. `optimizer` must belong to
// this embedding; null if there is none. The folder must exist and must not contain files of other saves: the files of
// all ranks form one whole, which is complete when all ranks have returned. Not collective. Needs memory on the host
// for a copy of one tensor at a time.
void save_rows(const std::filesystem::path& folder, const SplitEmbedding& embedding,
               const RowOptimizer* optimizer = nullptr);

// Reads this rank's rows, and squares if `optimizer` keeps any, from the files that save_rows wrote for tables of the
// same sizes; converts dtypes. Reads only the parts that this rank holds. Errors name the file, tensor or table: a
// folder without such files, with too few of them or with files of several saves; other tables; missing squares; rows
// that are in no file. After an error, the contents of the rows are undefined. Not collective.
void load_rows(const std::filesystem::path& folder, SplitEmbedding& embedding, RowOptimizer* optimizer = nullptr);

}  // namespace fsdp::sparse
