// The embedding tables of a tabular model, split over the ranks (sparse/split_embedding.h).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "models/tabular_model.h"
#include "sparse/row_optimizer.h"
#include "sparse/split_embedding.h"
#include "tasks/separate_parameters.h"

namespace fsdp::trainer {

class SplitTables final : public SeparateParameters {
 public:
  // The model must outlive this object.
  SplitTables(models::TabularModel& model, const Config& config);

  // Creates the embedding of the model, with rows of master_dtype and its own group of ranks.
  void make(const std::shared_ptr<Communicator>& ranks, c10::Device device,
            const std::optional<std::filesystem::path>& folder) override;
  void save(const std::filesystem::path& folder) const override;

  double learning_rate() const override { return options_.learning_rate; }
  void zero_grad() override;
  double grad_norm() const override;
  void step(double learning_rate, double gradient_scale) override;
  std::vector<SplitTensor> split_tensors() const override;
  std::vector<MemoryCategory> memory() const override;

 private:
  models::TabularModel& model_;
  at::ScalarType dtype_;
  sparse::RowOptimizerOptions options_;
  std::optional<double> divide_factor_;  // unset: the number of ranks
  std::shared_ptr<sparse::SplitEmbedding> embedding_;
  std::optional<sparse::RowOptimizer> optimizer_;
  double mean_scale_ = 1.0;  // turns the mean over ranks into the gradient
};

}  // namespace fsdp::trainer
