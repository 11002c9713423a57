// Embedding tables whose rows are split over ranks. Looked-up rows are sent between ranks, tables never are.
//
//   auto embedding = std::make_shared<SplitEmbedding>(group, tables, options);
//   RowOptimizer optimizer(embedding, {…});
//   for (…) { at::Tensor rows = embedding->forward(ids); …; loss.backward(); optimizer.step(); }
//
// FSDP would gather a table on every rank. Here each rank holds a part (row_split.h), receives the rows that its batch
// needs from their owners, and sends gradients back to them. The rest of a model can be under fully_shard: this module
// has no parameters in the sense of torch::nn::Module, so fully_shard does not shard, reduce, clip or count any part of
// it, and no optimizer over parameters() sees it.
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
  at::ScalarType dtype = at::kFloat;  // of rows, gradients and sent data; a floating dtype
  c10::Device device = c10::kCPU;
  std::string name = "embedding";  // in collectives and errors; equal on all ranks
};

// The rows of a table on this rank, with the name that a checkpoint may use for them.
struct EmbeddingPiece {
  std::string name;   // "table.3"
  int64_t rows = 0;   // number of rows of the whole table
  int64_t begin = 0;  // this rank has rows [begin, begin + values.size(0)); may be empty
  at::Tensor values;  // [n, width], a view that may be written without gradients
};

class SplitEmbedding final : public models::FeatureEmbedding {
 public:
  // `ranks` share the tables; pass a separate communicator (subgroup()) if other threads or streams use one at the same
  // time. Allocates only this rank's rows and gives them initial values, which do not depend on the number of ranks
  // (models::fill_initial_rows). Not collective.
  SplitEmbedding(std::shared_ptr<Communicator> ranks, models::EmbeddingTables tables,
                 const SplitEmbeddingOptions& options = {});

  // `ids` is int64 [batch, features] on this module's device; returns [batch, features, width]. Collective: all ranks
  // call it equally often and in the same order relative to other collectives of the group, each with its own batch
  // size, which may be zero. Exchanges the numbers of rows, the row ids, and the rows; a row that a batch needs several
  // times is sent once. Blocks.
  //
  // Backward is collective as well, so either all ranks or none must use the result in the loss that they
  // differentiate. It adds to gradient() on the owners the same gradient as data-parallel training: the mean over ranks
  // of the gradients of each rank's loss. Sums have a fixed order (RowExchange::give_back). A double backward
  // (create_graph) is an error. Without gradients (NoGradGuard) nothing is kept for backward.
  at::Tensor forward(const at::Tensor& ids) override;

  // The sum of the gradients of backward passes since clear_gradient(), by row of weight(); undefined if there was
  // none.
  const SparseRows& gradient() const { return gradient_; }
  void clear_gradient() { gradient_ = {}; }
  // Adds `rows` to gradient(). Called by backward.
  void add_gradient(const SparseRows& rows) { gradient_ = add_rows(gradient_, rows); }

  // This rank's rows [n, width], one table after another (RowSplit). Write to it only without gradients.
  const at::Tensor& weight() const { return weight_; }
  const RowSplit& split() const { return group_->split; }
  const RowGroup& group() const { return *group_; }
  // Returns the pieces of all tables in order, also of tables of which this rank holds no rows.
  std::vector<EmbeddingPiece> pieces() const { return pieces_of(weight_); }
  // Returns the same pieces of `state`, which has one row for each row of weight().
  std::vector<EmbeddingPiece> pieces_of(const at::Tensor& state) const;

 private:
  std::shared_ptr<const RowGroup> group_;
  at::Tensor weight_;
  SparseRows gradient_;
  uint64_t lookups_ = 0;
};

}  // namespace fsdp::sparse
