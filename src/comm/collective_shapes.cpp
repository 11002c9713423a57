#include "comm/collective_shapes.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace fsdp::comm {
namespace {

void check_flat(const at::Tensor& tensor, const char* what, const char* kind, const CollectiveId& id) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == 1 && tensor.is_contiguous(), describe(kind, id), ": the ", what,
              " must be a contiguous 1-D tensor",
              tensor.defined() ? c10::str(", got sizes ", tensor.sizes()) : std::string(", got an undefined one"));
}

void check_flat_pair(const at::Tensor& output, const at::Tensor& input, const char* kind, const CollectiveId& id) {
  check_flat(output, "output", kind, id);
  check_flat(input, "input", kind, id);
  TORCH_CHECK(output.device() == input.device(), describe(kind, id), ": the output is on ", output.device(),
              " and the input on ", input.device());
}

void check_reducible(const at::Tensor& output, const at::Tensor& input, const char* kind, const CollectiveId& id) {
  TORCH_CHECK(output.scalar_type() == input.scalar_type() || (output.is_floating_point() && input.is_floating_point()),
              describe(kind, id), ": cannot reduce ", input.scalar_type(), " into ", output.scalar_type());
}

// `way`: "send" or "receive"; `what`: the tensor that is split.
void check_split(const std::vector<int64_t>& counts, const char* way, const at::Tensor& tensor, const char* what,
                 int size, const CollectiveId& id) {
  TORCH_CHECK(counts.size() == static_cast<size_t>(size), describe("all-to-all", id), ": there are ", counts.size(),
              " ", way, " counts for a group of ", size, " ranks");
  int64_t sum = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    TORCH_CHECK(counts[rank] >= 0, describe("all-to-all", id), ": the ", way, " count of rank ", rank, " is ",
                counts[rank], ", which is negative");
    sum += counts[rank];
  }
  TORCH_CHECK(sum == tensor.numel(), describe("all-to-all", id), ": the ", what, " has ", tensor.numel(),
              " elements, but the ", way, " counts add up to ", sum);
}

}  // namespace

const char* to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kGatherBytes:
      return "all-gather of bytes";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kMessage:
      return "message";
  }
  return "unknown collective";
}

std::string describe(const std::string& kind, const CollectiveId& id) {
  return c10::str(kind, " of '", id.name, "' (", to_string(id.pass), ", generation ", id.generation, ")");
}

void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size, const CollectiveId& id) {
  check_flat_pair(output, input, "all-gather", id);
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), describe("all-gather", id), ": the output has dtype ",
              output.scalar_type(), " and the input ", input.scalar_type());
  TORCH_CHECK(output.numel() == input.numel() * size, describe("all-gather", id), ": the output has ", output.numel(),
              " elements, expected ", size, " ranks times ", input.numel());
}

void check_all_gather_ranges(const at::Tensor& tensor, const RankRanges& ranges, int size, const CollectiveId& id) {
  check_flat(tensor, "tensor", "all-gather", id);
  TORCH_CHECK(ranges.size() == static_cast<size_t>(size), describe("all-gather", id), ": there are ranges of ",
              ranges.size(), " ranks for a group of ", size, " ranks");
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    for (const ElementRange& range : ranges[rank]) {
      TORCH_CHECK(range.begin >= 0 && range.numel >= 0 && range.begin <= tensor.numel() - range.numel,
                  describe("all-gather", id), ": the ", range.numel, " elements from ", range.begin, " on, of rank ",
                  rank, ", are not in a tensor of ", tensor.numel());
    }
  }
}

void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int size, const CollectiveId& id) {
  check_flat_pair(output, input, "reduce-scatter", id);
  check_reducible(output, input, "reduce-scatter", id);
  TORCH_CHECK(input.numel() == output.numel() * size, describe("reduce-scatter", id), ": the input has ", input.numel(),
              " elements, expected ", size, " ranks times ", output.numel());
}

void check_all_reduce(const at::Tensor& output, const at::Tensor& tensor, const CollectiveId& id) {
  check_flat_pair(output, tensor, "all-reduce", id);
  check_reducible(output, tensor, "all-reduce", id);
  TORCH_CHECK(output.numel() == tensor.numel(), describe("all-reduce", id), ": the output has ", output.numel(),
              " elements and the input ", tensor.numel());
}

void check_broadcast(const at::Tensor& tensor, int root, int size, const CollectiveId& id) {
  check_flat(tensor, "tensor", "broadcast", id);
  TORCH_CHECK(root >= 0 && root < size, describe("broadcast", id), ": there is no rank ", root, " in a group of ", size,
              " to broadcast from");
}

void check_all_to_all(const at::Tensor& output, const at::Tensor& input, const SplitCounts& counts, int size,
                      const CollectiveId& id) {
  check_flat_pair(output, input, "all-to-all", id);
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), describe("all-to-all", id), ": the output has dtype ",
              output.scalar_type(), " and the input ", input.scalar_type());
  check_split(counts.send, "send", input, "input", size, id);
  check_split(counts.receive, "receive", output, "output", size, id);
}

void check_message(const at::Tensor& tensor, int peer, int rank, int size, const char* way, const CollectiveId& id) {
  TORCH_CHECK(tensor.defined() && tensor.is_contiguous(), describe("message", id), ": the tensor to ", way,
              " must be contiguous",
              tensor.defined() ? c10::str(", got sizes ", tensor.sizes(), " and strides ", tensor.strides())
                               : std::string(", got an undefined one"));
  TORCH_CHECK(peer >= 0 && peer < size && peer != rank, describe("message", id), ": rank ", rank, " of a group of ",
              size, " ranks cannot ", way, " one ", way[0] == 's' ? "to" : "from", " rank ", peer);
}

void check_own_part(const SplitCounts& counts, int rank, const CollectiveId& id) {
  const auto own = static_cast<size_t>(rank);
  TORCH_CHECK(counts.send[own] == counts.receive[own], describe("all-to-all", id), ": rank ", rank, " sends itself ",
              counts.send[own], " elements and expects ", counts.receive[own]);
}

bool has_equal_sizes(CollectiveKind kind) {
  return kind != CollectiveKind::kGatherBytes && kind != CollectiveKind::kAllToAll;
}

int check_subgroup(const std::vector<int>& members, int rank, int size, const CollectiveId& id) {
  bool ascending = std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end();
  bool inside = !members.empty() && members.front() >= 0 && members.back() < size;
  const auto place = std::find(members.begin(), members.end(), rank);
  TORCH_CHECK(ascending && inside && place != members.end(), describe("subgroup", id), ": rank ", rank, " of ", size,
              " cannot be in a group of the ranks [", c10::Join(", ", members),
              "]: they must be ranks of this group in ascending order and include this rank");
  return static_cast<int>(place - members.begin());
}

void copy_into_slice(at::Tensor& whole, int rank, const at::Tensor& part) {
  const size_t bytes = part.nbytes();
  if (bytes == 0) return;
  if (!part.is_cpu()) {
    whole.narrow(0, rank * part.numel(), part.numel()).copy_(part);
    return;
  }
  char* slice = static_cast<char*>(whole.mutable_data_ptr()) + static_cast<size_t>(rank) * bytes;
  if (slice != part.const_data_ptr()) std::memcpy(slice, part.const_data_ptr(), bytes);
}

Part part_of(int64_t numel, int rank, int size) {
  const int64_t share = numel / size;
  const int64_t longer = numel % size;
  return {rank * share + std::min<int64_t>(rank, longer), share + (rank < longer ? 1 : 0)};
}

}  // namespace fsdp::comm
