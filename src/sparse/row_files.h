// Rows of split embedding tables in a folder, written by any number of ranks and read by any other.
//
// One safetensors file for each rank that wrote, rows-R-of-N.safetensors, with the tensors "table.T" [n, width] and,
// for an optimizer that keeps squares, "table.T.squares" [n]; metadata "table.T.begin" and "table.T.rows" say which
// rows of how many these are.
#pragma once

#include <filesystem>

#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"

namespace fsdp::sparse {

// Writes this rank's file, which appears under its name when it is complete and on the disk. `optimizer` of this
// embedding; null: none. The folder must be there, and is to hold nothing of other saves: the files of all ranks make a
// whole, which is complete when all ranks have returned. Not collective; a copy on the host of one tensor at a time.
void save_rows(const std::filesystem::path& folder, const SplitEmbedding& embedding,
               const RowOptimizer* optimizer = nullptr);

// Reads this rank's rows, and squares if `optimizer` keeps any, from the files that save_rows wrote for tables of the
// same sizes; converts dtypes. Nothing but what this rank holds is read. Errors name file, tensor or table: a folder
// without such files, with too few of them or those of several saves; other tables; squares that are not there; rows
// that are in no file. Rows may hold anything after an error. Not collective.
void load_rows(const std::filesystem::path& folder, SplitEmbedding& embedding, RowOptimizer* optimizer = nullptr);

}  // namespace fsdp::sparse
