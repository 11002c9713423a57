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
  std::vector<int64_t> rows;  // rows of each table; at least one table
  int64_t width = 0;
  // Seed of the initial values. A row's values depend only on the seed, its table and its index, not on the rank that
  // holds it.
  uint64_t seed = 0;

  int64_t features() const { return static_cast<int64_t>(rows.size()); }
  int64_t total_rows() const;
};

// Throws an error that names table and size unless there is at least one table and all sizes are positive and do not
// overflow.
void check_tables(const EmbeddingTables& tables);

// Throws unless `ids` is int64 [batch, features] and each id is a row of its table. On a device, waits for the check.
void check_ids(const EmbeddingTables& tables, const at::Tensor& ids);

// Writes the initial values of the rows first_row, first_row + 1, … of a table into `rows` ([n, width], contiguous, a
// floating dtype, any device): uniform between -1/sqrt(R) and 1/sqrt(R), where R is the number of rows of the table.
void fill_initial_rows(const EmbeddingTables& tables, int64_t table, int64_t first_row, at::Tensor rows);

// Looks up rows. Subclasses decide where the tables are and how they are trained.
class FeatureEmbedding : public torch::nn::Module {
 public:
  explicit FeatureEmbedding(EmbeddingTables tables);
  // ids: int64 [batch, features]. Returns [batch, features, width].
  virtual at::Tensor forward(const at::Tensor& ids) = 0;
  const EmbeddingTables& tables() const { return tables_; }

 private:
  EmbeddingTables tables_;
};

// All tables on one device, concatenated into one parameter `weight` [total rows, width] with a dense gradient.
class WholeEmbeddingImpl : public FeatureEmbedding {
 public:
  // On the meta device the parameter has no values.
  WholeEmbeddingImpl(EmbeddingTables tables, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& ids) override;
  // Writes the initial values.
  void reset_parameters();

  at::Tensor weight;

 private:
  at::Tensor first_rows_;  // index of each table's first row in `weight`; on the host
};
TORCH_MODULE(WholeEmbedding);

}  // namespace fsdp::models
