// One lookup over the ranks: ranks request rows from their owners, receive the rows, and send gradients back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fsdp/communicator.h"
#include "sparse/row_split.h"
#include "sparse/sparse_rows.h"

namespace fsdp::sparse {

// The state that all lookups of one embedding share.
struct RowGroup {
  std::shared_ptr<Communicator> ranks;
  RowSplit split;
  int64_t width;
  std::string name;  // names its collectives
};

// A row that a rank needs several times is sent only once in each direction. Every function is a collective of all
// ranks of the group, on the device of the ids.
class RowExchange {
 public:
  // Tells the owners which rows this rank needs. Blocks. `number` is the number of this lookup, equal on all ranks
  // (CollectiveId::generation). `ids` is int64 [batch, features] with valid ids, and may be empty.
  RowExchange(std::shared_ptr<const RowGroup> group, uint64_t number, const at::Tensor& ids);

  // Returns the rows of the ids, [batch * features, width]. `held` contains this rank's rows.
  at::Tensor fetch(const at::Tensor& held);

  // `gradient` is the gradient of the result of fetch(). Returns the gradient of this rank's rows: the mean over ranks
  // of the sums over uses. It is summed first over each rank's uses in the order of its batch, then over ranks in rank
  // order, and then divided by the number of ranks.
  SparseRows send_back(const at::Tensor& gradient);

 private:
  void exchange_counts(const at::Tensor& owners);
  // Exchanges parts of `input`, whose rows are `width` elements wide.
  at::Tensor exchange(const char* what, Pass pass, const at::Tensor& input, const SplitCounts& rows, int64_t width);

  std::shared_ptr<const RowGroup> group_;
  uint64_t number_;
  SplitCounts counts_;     // rows that this rank requests from each rank, and that each requests from it
  at::Tensor use_;         // [batch * features]: index of each id's row among the requested rows
  at::Tensor asked_here_;  // rows of this rank that others requested, in rank order
};

}  // namespace fsdp::sparse
