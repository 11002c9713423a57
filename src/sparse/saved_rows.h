// What a training checkpoint keeps of split embedding tables.
#pragma once

#include <vector>

#include "fsdp/split_tensor.h"
#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"

namespace fsdp::sparse {

// For CheckpointedRun::split: this rank's rows of each table, "EMBEDDING.table.T" with the embedding's name
// (SplitEmbeddingOptions::name), and, for an optimizer that keeps any, their squares. `optimizer` of this embedding;
// null: none. Views of what both hold, good for saving and loading as long as both live. Not in them: the optimizer's
// rule, learning rate and eps.
std::vector<SplitTensor> rows_to_save(const SplitEmbedding& embedding, const RowOptimizer* optimizer = nullptr);

}  // namespace fsdp::sparse
