#include "sparse/row_split.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/collective_shapes.h"

namespace fsdp::sparse {

RowSplit::RowSplit(const models::EmbeddingTables& tables, int size) : size_(size), table_rows_(tables.rows) {
  TORCH_CHECK(size >= 1, "rows cannot be split over ", size, " ranks");
  std::vector<int64_t> share, longer, places;
  for (const int64_t rows : table_rows_) {
    share.push_back(rows / size);
    longer.push_back(rows % size);
  }
  for (int rank = 0; rank < size; ++rank) {
    for (const HeldRows& held : held_by(rank)) places.push_back(held.place);
    rows_of_.push_back(held_by(rank).back().place + comm::part_of(table_rows_.back(), rank, size).numel);
  }
  share_ = at::tensor(share, at::kLong);
  longer_ = at::tensor(longer, at::kLong);
  first_places_ = at::tensor(places, at::kLong);
}

int64_t RowSplit::most_rows() const { return *std::max_element(rows_of_.begin(), rows_of_.end()); }

std::vector<HeldRows> RowSplit::held_by(int rank) const {
  std::vector<HeldRows> result;
  int64_t place = 0;
  for (size_t table = 0; table < table_rows_.size(); ++table) {
    const comm::Part part = comm::part_of(table_rows_[table], rank, size_);
    result.push_back({static_cast<int64_t>(table), part.begin, part.begin + part.numel, place});
    place += part.numel;
  }
  return result;
}

RowAddress RowSplit::address_of(const at::Tensor& ids) const {
  const at::Tensor share = share_.to(ids.device()), longer = longer_.to(ids.device());
  const at::Tensor behind_longer = longer * (share + 1);
  const at::Tensor in_longer = ids.div(share + 1, "floor");
  const at::Tensor in_rest = (ids - behind_longer).div(share.clamp_min(1), "floor") + longer;
  const at::Tensor owner = at::where(ids < behind_longer, in_longer, in_rest);
  const at::Tensor begin = owner * share + at::minimum(owner, longer);
  const auto features = static_cast<int64_t>(table_rows_.size());
  const at::Tensor key = owner * features + at::arange(features, ids.options());
  return {owner, ids - begin + first_places_.to(ids.device()).take(key)};
}

}  // namespace fsdp::sparse
