#include "tasks/split_tables.h"

#include <ATen/TensorOperators.h>

#include <cmath>
#include <numeric>

#include "loop/exchange.h"
#include "sparse/row_files.h"
#include "sparse/saved_rows.h"

namespace fsdp::trainer {

namespace {

constexpr double kDefaultLearningRate = 0.01;  // used if sparse_learning_rate is null

std::vector<int> all_ranks(const Communicator& communicator) {
  std::vector<int> ranks(static_cast<size_t>(communicator.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

MemoryCategory held(const char* name, const at::Tensor& tensor) {
  const auto nbytes = tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
  return {name, nbytes, nbytes, nbytes};
}

}  // namespace

SplitTables::SplitTables(models::TabularModel& model, const Config& config)
    : model_(model),
      dtype_(config.precision.master_dtype),
      options_{.rule = config.optimizer.sparse_optimizer,
               .learning_rate = config.optimizer.sparse_learning_rate.value_or(kDefaultLearningRate)},
      divide_factor_(config.steps.gradient_divide_factor) {}

// Lookups communicate while the engine uses the ranks, so they need their own group.
void SplitTables::make(const std::shared_ptr<Communicator>& ranks, c10::Device device,
                       const std::optional<std::filesystem::path>& folder) {
  auto group = ranks->subgroup(all_ranks(*ranks), {.name = "embedding"});
  embedding_ = std::make_shared<sparse::SplitEmbedding>(
      group, model_.tables(), sparse::SplitEmbeddingOptions{.dtype = dtype_, .device = device});
  if (folder) sparse::load_rows(*folder, *embedding_);
  optimizer_.emplace(embedding_, options_);
  mean_scale_ = divide_factor_ ? static_cast<double>(ranks->size()) / *divide_factor_ : 1.0;
  model_.set_embedding(embedding_);
}

void SplitTables::save(const std::filesystem::path& folder) const { sparse::save_rows(folder, *embedding_); }

void SplitTables::zero_grad() { optimizer_->zero_grad(); }

double SplitTables::grad_norm() const {
  double squares = 0;
  if (const sparse::SparseRows& gradient = embedding_->gradient(); gradient.defined()) {
    squares = gradient.values.to(at::kDouble).square().sum().item<double>();
  }
  double total = 0;
  for (const auto& rank : gather_values(*embedding_->group().ranks, {squares}, {.name = "embedding_grad_norm"})) {
    total += rank[0];
  }
  return std::sqrt(total) * mean_scale_;
}

void SplitTables::step(double learning_rate, double gradient_scale) {
  optimizer_->set_learning_rate(learning_rate);
  optimizer_->step(gradient_scale * mean_scale_);
}

std::vector<SplitTensor> SplitTables::split_tensors() const { return sparse::rows_to_save(*embedding_, &*optimizer_); }

std::vector<MemoryCategory> SplitTables::memory() const {
  return {held("embedding rows", embedding_->weight()), held("state of embedding rows", optimizer_->squares()),
          held("gradients of embedding rows", embedding_->gradient().values)};
}

}  // namespace fsdp::trainer
