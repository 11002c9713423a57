#include "sparse/row_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <utility>
#include <vector>

namespace fsdp::sparse {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t width) {
  for (int64_t& count : counts) count *= width;
  return counts;
}

SplitCounts reversed(const SplitCounts& counts) { return {counts.receive, counts.send}; }

}  // namespace

RowExchange::RowExchange(std::shared_ptr<const RowGroup> group, uint64_t number, const at::Tensor& ids)
    : group_(std::move(group)), number_(number) {
  const RowAddress address = group_->split.address_of(ids);
  // Encodes owner and place in one number: sorting it orders rows by their owners.
  const int64_t most = group_->split.most_rows();
  const at::Tensor keys = (address.owner * most + address.place).reshape(-1);
  auto [unique, use, unused] = at::_unique2(keys, /*sorted=*/true, /*return_inverse=*/true);
  use_ = use;
  exchange_counts(unique.div(most, "floor"));
  asked_here_ = exchange("ids", Pass::kForward, unique.remainder(most), counts_, 1);
}

void RowExchange::exchange_counts(const at::Tensor& owners) {
  const int size = group_->split.size();
  const at::Tensor asked = at::bincount(owners, {}, size).cpu();
  const SplitCounts one_each{std::vector<int64_t>(static_cast<size_t>(size), 1),
                             std::vector<int64_t>(static_cast<size_t>(size), 1)};
  const at::Tensor received = exchange("counts", Pass::kForward, asked.to(owners.device()), one_each, 1).cpu();
  const auto* send = asked.const_data_ptr<int64_t>();
  const auto* receive = received.const_data_ptr<int64_t>();
  counts_ = {std::vector<int64_t>(send, send + size), std::vector<int64_t>(receive, receive + size)};
}

at::Tensor RowExchange::exchange(const char* what, Pass pass, const at::Tensor& input, const SplitCounts& rows,
                                 int64_t width) {
  const SplitCounts elements{times(rows.send, width), times(rows.receive, width)};
  at::Tensor output = at::empty({sum_of(elements.receive)}, input.options());
  const CollectiveId id{c10::str(group_->name, ", ", what), number_, pass};
  group_->ranks->all_to_all(output, input.contiguous().view(-1), elements, id)->wait();
  return output;
}

at::Tensor RowExchange::fetch(const at::Tensor& held) {
  const at::Tensor given = held.index_select(0, asked_here_);
  const at::Tensor rows = exchange("rows", Pass::kForward, given, reversed(counts_), group_->width);
  return rows.view({-1, group_->width}).index_select(0, use_);
}

SparseRows RowExchange::send_back(const at::Tensor& gradient) {
  const at::Tensor summed = sum_by_place(gradient, use_, sum_of(counts_.send));
  const at::Tensor received = exchange("gradients", Pass::kBackward, summed, counts_, group_->width);
  SparseRows sums = sum_rows(asked_here_, received.view({-1, group_->width}));
  sums.values.mul_(1.0 / group_->split.size());
  return sums;
}

}  // namespace fsdp::sparse
