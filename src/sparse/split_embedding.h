// Embedding tables whose rows are split over ranks. Looked-up rows travel, tables never do.
//
//   auto embedding = std::make_shared<SplitEmbedding>(group, tables, options);
//   RowOptimizer optimizer(embedding, {…});
//   for (…) { at::Tensor rows = embedding->forward(ids); …; loss.backward(); optimizer.step(); }
//
// FSDP would gather a table on every rank. Here each rank holds a part (row_split.h), receives the rows that its batch
// needs from their owners, and sends gradients back to them. The rest of a model can be under fully_shard: the module
// has no parameters in the sense of torch::nn::Module, so nothing of it is sharded, reduced, clipped or counted there,
// and no optimizer over parameters() sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/communicator.h"
#include "models/feature_embedding.h"
#include "sparse/row_exchange.h"

namespace fsdp::sparse {

struct SplitEmbeddingOptions {
  at::ScalarType dtype = at::kFloat;  // of rows, gradients and what travels; a floating one
  c10::Device device = c10::kCPU;
  std::string name = "embedding";  // in collectives and errors; equal on all ranks
};

// Rows of a table on this rank, under which a checkpoint may keep them.
struct EmbeddingPiece {
  std::string name;   // "table.3"
  int64_t rows = 0;   // of the whole table
  int64_t begin = 0;  // this rank has rows [begin, begin + values.size(0)), perhaps none
  at::Tensor values;  // [n, width], a view that may be written without gradients
};

class SplitEmbedding final : public models::FeatureEmbedding {
 public:
  // `ranks` share the tables; take a communicator of their own (subgroup()) where other threads or streams use one at
  // the same time. Allocates this rank's rows only and gives them initial values, which do not depend on the number of
  // ranks (models::fill_initial_rows). Not collective.
  SplitEmbedding(std::shared_ptr<Communicator> ranks, models::EmbeddingTables tables,
                 const SplitEmbeddingOptions& options = {});

  // ids: int64 [batch, features] on this module's device; [batch, features, width] comes back. Collective: all ranks
  // call it equally often and in the same order relative to other collectives of the group, each with a batch of its
  // own size, which may be zero. Exchanges the numbers of rows, the rows' numbers, and rows: each row that a batch
  // needs several times once. Blocks.
  //
  // Backward is collective as well, so all ranks or none must use the result in the loss that they differentiate. It
  // adds to gradient() on the owners, as data-parallel training would see it: the mean over ranks of what each rank's
  // loss gives. Sums have a fixed order (RowExchange::give_back). A double backward (create_graph) is an error.
  // Without gradients (NoGradGuard) nothing is kept for backward.
  at::Tensor forward(const at::Tensor& ids) override;

  // What backward passes have added up since clear_gradient(), by row of weight(): undefined if there was none.
  const SparseRows& gradient() const { return gradient_; }
  void clear_gradient() { gradient_ = {}; }
  // Adds `rows` to gradient(). For backward.
  void add_gradient(const SparseRows& rows) { gradient_ = add_rows(gradient_, rows); }

  // This rank's rows [n, width], those of one table behind those of another (RowSplit). Write it without gradients.
  const at::Tensor& weight() const { return weight_; }
  const RowSplit& split() const { return group_->split; }
  const RowGroup& group() const { return *group_; }
  // All tables in order, also those of which this rank holds no row.
  std::vector<EmbeddingPiece> pieces() const { return pieces_of(weight_); }
  // The same of `state`, which has one row for each of weight()'s.
  std::vector<EmbeddingPiece> pieces_of(const at::Tensor& state) const;

 private:
  std::shared_ptr<const RowGroup> group_;
  at::Tensor weight_;
  SparseRows gradient_;
  uint64_t lookups_ = 0;
};

}  // namespace fsdp::sparse
