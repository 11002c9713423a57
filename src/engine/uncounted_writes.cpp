#include "engine/uncounted_writes.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "flat/rank_order.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/write_watch.h"

namespace fsdp::engine {
namespace {

// The parameters of a FlatParameter that were written.
struct Written {
  const flat::FlatParameter& flat;
  std::vector<int64_t> parameters;
};

// What was written to parked values is not known.
Written all_of(const flat::FlatParameter& flat) {
  Written all{flat, std::vector<int64_t>(flat.parameters().size())};
  std::iota(all.parameters.begin(), all.parameters.end(), 0);
  return all;
}

Written written_to(const Unit& unit, const flat::FlatParameter& flat) FSDP_REQUIRES(unit.mutex) {
  if (unit.buffers.is_parked(flat)) {
    return unit.buffers.is_parked_with(flat, flat.shard()) ? Written{flat, {}} : all_of(flat);
  }
  const at::Tensor& whole = unit.buffers.of(flat);
  const bool is_copy = whole.defined() && !whole.is_same(flat.shared());
  return {flat, is_copy ? flat::parameters_that_differ(flat, whole, flat.shard()) : std::vector<int64_t>()};
}

bool holds_any(const std::vector<Written>& written, int64_t rank) {
  return std::any_of(written.begin(), written.end(), [rank](const Written& one) {
    return std::any_of(one.parameters.begin(), one.parameters.end(),
                       [&](int64_t i) { return one.flat.layout().slice(i, rank).numel() > 0; });
  });
}

std::vector<Written> written_to(const Unit& unit) FSDP_REQUIRES(unit.mutex) {
  std::vector<Written> written;
  if (!may_be_written(unit)) return written;
  if (unit.use.writable()) return written;  // it is the gathered parameters that may have changed
  seams::CleanDispatchGuard clean;
  for (const auto& flat : unit.flat_parameters()) {
    if (!seams::may_be_written(flat->shard())) continue;
    if (Written one = written_to(unit, *flat); !one.parameters.empty()) written.push_back(std::move(one));
  }
  return written;
}

}  // namespace

void watch_shards(const Unit& unit) {
  for (const auto& flat : unit.flat_parameters()) seams::watch_writes(flat->shard());
}

bool may_be_written(const Unit& unit) {
  for (const auto& flat : unit.flat_parameters()) {
    if (seams::may_be_written(flat->shard())) return true;
  }
  return false;
}

bool written_uncounted(const Unit& unit) {
  if (!may_be_written(unit)) return false;
  const bool written = !written_to(unit).empty();
  const bool was_compared = unit.buffers.gathered() || unit.buffers.parks_any();
  if (was_compared && !written && !unit.use.writable()) watch_shards(unit);  // pointers so far are known to be harmless
  return written;
}

void check_all_ranks_notice(const Unit& unit) {
  const std::vector<Written> written = written_to(unit);
  if (written.empty() || written.front().flat.layout().cut() != ShardCut::kRows) return;
  const Written& first = written.front();
  for (int64_t rank = 0; rank < first.flat.position().factor; ++rank) {
    TORCH_CHECK(holds_any(written, rank), "fsdp: ", unit.where(), ": this rank's part of parameter '",
                first.flat.parameters()[static_cast<size_t>(first.parameters.front())].fqn,
                "' was written past its version counter (through .data of a view, numpy, DLPack or a pointer) while "
                "gathered parameters were kept. Rank ",
                rank,
                " of those that share it holds none of its rows and cannot notice. Write through the parameter "
                "or its local tensor themselves, or release the unit on all ranks after the write (reshard)");
  }
}

}  // namespace fsdp::engine
