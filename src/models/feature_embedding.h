// Embedding tables of categorical features: one table for each feature, all of one width.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace fsdp::models {

// Feature f of a batch is looked up in table f.
struct EmbeddingTables {
  std::vector<int64_t> rows;  // of each table, at least one
  int64_t width = 0;
  // Of initial values. A row's values depend on this, its table and its number alone, not on who holds it.
  uint64_t seed = 0;

  int64_t features() const { return static_cast<int64_t>(rows.size()); }
  int64_t total_rows() const;
};

// Throws, naming table and size, unless there is a table and all sizes are positive and can be counted.
void check_tables(const EmbeddingTables& tables);

// Throws unless `ids` is int64 [batch, features] and each id is a row of its table. On a device it waits for that.
void check_ids(const EmbeddingTables& tables, const at::Tensor& ids);

// Writes the initial values of rows first_row, first_row + 1, … of a table into `rows` ([n, width], contiguous, a
// floating dtype, any device): uniform between -1/sqrt(R) and 1/sqrt(R), R the table's number of rows.
void fill_initial_rows(const EmbeddingTables& tables, int64_t table, int64_t first_row, at::Tensor rows);

// Looks rows up. Whoever holds the tables decides where they are and how they learn.
class FeatureEmbedding : public torch::nn::Module {
 public:
  explicit FeatureEmbedding(EmbeddingTables tables);
  // ids: int64 [batch, features]. Returns [batch, features, width].
  virtual at::Tensor forward(const at::Tensor& ids) = 0;
  const EmbeddingTables& tables() const { return tables_; }

 private:
  EmbeddingTables tables_;
};

// All tables on one device, as one parameter `weight` [total rows, width], one table behind another, with a dense
// gradient.
class WholeEmbeddingImpl : public FeatureEmbedding {
 public:
  // On the meta device the parameter has no values.
  WholeEmbeddingImpl(EmbeddingTables tables, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& ids) override;
  // Writes the initial values.
  void reset_parameters();

  at::Tensor weight;

 private:
  at::Tensor first_rows_;  // of each table in `weight`; on the host
};
TORCH_MODULE(WholeEmbedding);

}  // namespace fsdp::models
