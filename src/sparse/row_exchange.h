// One lookup over the ranks: who needs which rows of whom, rows there, gradients back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/communicator.h"
#include "sparse/row_split.h"
#include "sparse/sparse_rows.h"

namespace fsdp::sparse {

// What the lookups of one embedding share.
struct RowGroup {
  std::shared_ptr<Communicator> ranks;
  RowSplit split;
  int64_t width;
  std::string name;  // of its collectives
};

// A row that a rank needs several times travels once, there and back. Every function is a collective of all ranks of
// the group, on the device of the ids.
class RowExchange {
 public:
  // Tells the owners which rows this rank needs. Blocks. `number`: of this lookup, equal on all ranks
  // (CollectiveId::generation). ids: int64 [batch, features], valid; there may be none.
  RowExchange(std::shared_ptr<const RowGroup> group, uint64_t number, const at::Tensor& ids);

  // The rows of the ids, [batch * features, width]. `held`: this rank's rows.
  at::Tensor fetch(const at::Tensor& held);

  // gradient: of what fetch() returned. Returns this rank's rows with the mean over ranks of the sums over uses: first
  // over each rank's uses in the order of its batch, then over ranks in rank order, then divided by their number.
  SparseRows give_back(const at::Tensor& gradient);

 private:
  void exchange_counts(const at::Tensor& owners);
  // Sends parts of `input` whose rows are `width` elements wide.
  at::Tensor exchange(const char* what, Pass pass, const at::Tensor& input, const SplitCounts& rows, int64_t width);

  std::shared_ptr<const RowGroup> group_;
  uint64_t number_;
  SplitCounts counts_;     // rows that this rank asks of each rank, and is asked for
  at::Tensor use_;         // [batch * features]: which of the rows asked for each id is
  at::Tensor asked_here_;  // rows of this rank that others asked for, in rank order
};

}  // namespace fsdp::sparse
