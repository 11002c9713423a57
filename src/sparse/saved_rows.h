// The part of split embedding tables that a training checkpoint saves.
#pragma once

#include <vector>

#include "fsdp/split_tensor.h"
#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"

namespace fsdp::sparse {

// Returns tensors for CheckpointedRun::split: this rank's rows of each table, "EMBEDDING.table.T" with the embedding's
// name (SplitEmbeddingOptions::name), and, for an optimizer that keeps any, their squares. `optimizer` must belong to
// this embedding; null if there is none. The tensors are views of the memory of both and can be saved and loaded as
// long as both live. Not included: the optimizer's rule, learning rate and eps.
std::vector<SplitTensor> rows_to_save(const SplitEmbedding& embedding, const RowOptimizer* optimizer = nullptr);

}  // namespace fsdp::sparse
