// The kinds of collectives, the requirements of each on its tensors, and the split of tensors over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::comm {

enum class CollectiveKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kGatherBytes,
  kBroadcast,
  kAllToAll,
  kMessage
};
const char* to_string(CollectiveKind kind);

// "all-gather of 'layer.3' (forward, generation 7)"
std::string describe(const std::string& kind, const CollectiveId& id);

// Each throws an error that names the collective and the sizes, unless the tensors are 1-D, contiguous, and fit
// together as communicator.h requires.
void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size, const CollectiveId& id);
void check_all_gather_ranges(const at::Tensor& tensor, const RankRanges& ranges, int size, const CollectiveId& id);
void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int size, const CollectiveId& id);
void check_all_reduce(const at::Tensor& output, const at::Tensor& tensor, const CollectiveId& id);
void check_broadcast(const at::Tensor& tensor, int root, int size, const CollectiveId& id);
void check_all_to_all(const at::Tensor& output, const at::Tensor& input, const SplitCounts& counts, int size,
                      const CollectiveId& id);

// For a message of this rank to or from `peer`; `way`: "send" or "receive".
void check_message(const at::Tensor& tensor, int peer, int rank, int size, const char* way, const CollectiveId& id);

// Throws unless this rank sends itself as many elements as it expects from itself.
void check_own_part(const SplitCounts& counts, int rank, const CollectiveId& id);

// Whether all ranks pass tensors of equal sizes to collectives of this kind.
bool has_equal_sizes(CollectiveKind kind);

// Throws unless `members` are ascending ranks below `size` and include `rank`. Returns the position of `rank` in them.
int check_subgroup(const std::vector<int>& members, int rank, int size, const CollectiveId& id);

// Copies `part` into the slice of `whole` that belongs to `rank`. Does nothing if `part` already is that slice.
void copy_into_slice(at::Tensor& whole, int rank, const at::Tensor& part);

// The contiguous part of `numel` elements that `rank` reduces. The first numel % size ranks have one element more.
struct Part {
  int64_t begin = 0;
  int64_t numel = 0;
};
Part part_of(int64_t numel, int rank, int size);

}  // namespace fsdp::comm
