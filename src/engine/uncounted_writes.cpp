#include "engine/uncounted_writes.h"

#include "flat/rank_order.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/write_watch.h"

namespace fsdp::engine {
namespace {

bool differs(const Unit& unit, const flat::FlatParameter& flat) FSDP_REQUIRES(unit.mutex) {
  if (unit.buffers.is_parked(flat)) return !unit.buffers.is_parked_with(flat, flat.shard());
  const at::Tensor& whole = unit.buffers.of(flat);
  const bool is_copy = whole.defined() && !whole.is_same(flat.shared());
  return is_copy && !flat::has_own_part(flat, whole, flat.shard());
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
  if (unit.use.writable()) return false;  // it is the gathered parameters that may have changed
  seams::CleanDispatchGuard clean;
  for (const auto& flat : unit.flat_parameters()) {
    if (!seams::may_be_written(flat->shard())) continue;
    if (differs(unit, *flat)) return true;
    seams::watch_writes(flat->shard());
  }
  return false;
}

}  // namespace fsdp::engine
