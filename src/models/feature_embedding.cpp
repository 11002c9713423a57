#include "models/feature_embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace fsdp::models {
namespace {

constexpr int64_t kRowsAtATime = 1 << 20;  // rows that are made on the host before they are copied to a device

// The output function of SplitMix64: a bijection with random-looking results.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Returns a number in [-1, 1) with 24 bits, which fp32 represents exactly.
double signed_fraction(uint64_t bits) { return static_cast<double>(bits >> 40) / (1 << 23) - 1.0; }

// `rows` must be fp32 on the host.
void fill_on_host(const EmbeddingTables& tables, int64_t table, int64_t first_row, const at::Tensor& rows) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(tables.rows[static_cast<size_t>(table)]));
  const uint64_t table_key = mix(mix(tables.seed) + static_cast<uint64_t>(table));
  auto* values = rows.mutable_data_ptr<float>();
  at::parallel_for(0, rows.size(0), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t row_key = mix(table_key + static_cast<uint64_t>(first_row + row));
      for (int64_t column = 0; column < tables.width; ++column) {
        const double value = signed_fraction(mix(row_key + static_cast<uint64_t>(column))) * bound;
        values[row * tables.width + column] = static_cast<float>(value);
      }
    }
  });
}

}  // namespace

int64_t EmbeddingTables::total_rows() const { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

void check_tables(const EmbeddingTables& tables) {
  TORCH_CHECK(!tables.rows.empty(), "embedding tables: the list is empty");
  TORCH_CHECK(tables.width > 0, "embedding tables: a width of ", tables.width, " is not positive");
  int64_t room = std::numeric_limits<int64_t>::max() / tables.width;
  for (size_t table = 0; table < tables.rows.size(); ++table) {
    TORCH_CHECK(tables.rows[table] > 0, "embedding table ", table, " has ", tables.rows[table],
                " rows; it needs at least one");
    TORCH_CHECK(tables.rows[table] <= room, "embedding table ", table, " with ", tables.rows[table], " rows of ",
                tables.width, " numbers: the tables together have more numbers than a 64-bit integer can count");
    room -= tables.rows[table];
  }
}

void check_ids(const EmbeddingTables& tables, const at::Tensor& ids) {
  TORCH_CHECK(ids.defined() && ids.scalar_type() == at::kLong && ids.dim() == 2 && ids.size(1) == tables.features(),
              "embedding: ids must be int64 of sizes [batch, ", tables.features(), "]",
              ids.defined() ? c10::str(", got ", ids.scalar_type(), " of sizes ", ids.sizes()) : std::string());
  const at::Tensor rows = at::tensor(tables.rows, at::kLong).to(ids.device());
  const at::Tensor wrong = (ids < 0).logical_or(ids >= rows);
  if (!wrong.any().item<bool>()) return;
  const at::Tensor first = wrong.nonzero()[0].cpu();
  const int64_t sample = first[0].item<int64_t>(), feature = first[1].item<int64_t>();
  TORCH_CHECK(false, "embedding: id ", ids[sample][feature].item<int64_t>(), " of feature ", feature, " in row ",
              sample, " of the batch is not in its table of ", tables.rows[static_cast<size_t>(feature)], " rows");
}

void fill_initial_rows(const EmbeddingTables& tables, int64_t table, int64_t first_row, at::Tensor rows) {
  at::NoGradGuard no_grad;
  for (int64_t begin = 0; begin < rows.size(0); begin += kRowsAtATime) {
    const int64_t count = std::min(kRowsAtATime, rows.size(0) - begin);
    const at::Tensor part = at::empty({count, tables.width}, at::kFloat);
    fill_on_host(tables, table, first_row + begin, part);
    rows.narrow(0, begin, count).copy_(part);
  }
}

FeatureEmbedding::FeatureEmbedding(EmbeddingTables tables) : tables_(std::move(tables)) { check_tables(tables_); }

WholeEmbeddingImpl::WholeEmbeddingImpl(EmbeddingTables all, const at::TensorOptions& options)
    : FeatureEmbedding(std::move(all)) {
  weight = register_parameter("weight", at::empty({tables().total_rows(), tables().width}, options));
  std::vector<int64_t> first(tables().rows.size());
  std::exclusive_scan(tables().rows.begin(), tables().rows.end(), first.begin(), int64_t{0});
  first_rows_ = at::tensor(first, at::kLong);
  if (!weight.is_meta()) reset_parameters();
}

void WholeEmbeddingImpl::reset_parameters() {
  at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (int64_t table = 0; table < tables().features(); ++table) {
    const int64_t count = tables().rows[static_cast<size_t>(table)];
    fill_initial_rows(tables(), table, 0, weight.narrow(0, begin, count));
    begin += count;
  }
}

at::Tensor WholeEmbeddingImpl::forward(const at::Tensor& ids) {
  check_ids(tables(), ids);
  return at::embedding(weight, ids + first_rows_.to(ids.device()));
}

}  // namespace fsdp::models
