// The part of the engine that users call directly: gathering by hand, whole parameters, writes.
#include <ATen/ops/where.h>

#include <algorithm>

#include "base/finally.h"
#include "engine/engine.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/gradient_hooks.h"
#include "torch_seams/shard_version.h"

namespace fsdp {
namespace {

// Returns the bit patterns of the elements. A comparison of these tells -0 from 0, and finds a NaN equal to itself.
at::Tensor bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return tensor.view(at::kByte);
    case 2:
      return tensor.view(at::kShort);
    case 4:
      return tensor.view(at::kInt);
    default:
      return tensor.view(at::kLong);
  }
}

}  // namespace

void Engine::check_membership() {
  for (auto& unit : units_) {
    unit->check_membership();
  }
}

void Engine::unshard(const std::vector<Unit*>& units, bool async_op) {
  prepare();
  observe_backward();
  for (Unit* unit : units) {
    std::lock_guard lock(unit->mutex);
    begin_gather(*unit);
    unit->note_requested();
  }
  if (!async_op) {
    wait_for(units);
  }
}

void Engine::wait_for(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    std::lock_guard lock(unit->mutex);
    if (unit->gathering()) {
      ensure_gathered(*unit);
    }
  }
}

void Engine::reshard() {
  end_visit();
  reshard(all_units());
}

void Engine::reshard(const std::vector<Unit*>& units) {
  for (Unit* unit : units) {
    release_if_idle(*unit);
    std::lock_guard lock(unit->mutex);
    unit->unpark(parameter_pool_);
  }
}

// [Note: readers that wait for each other]
// The rank that writes waits until no other rank reads this unit's shards. Ranks may write to units in different
// orders, because an optimizer passes over leaves without elements. Therefore each rank first ends its own reading of
// all units; otherwise two ranks would wait for each other. Optimizers inside backward need not do this: they write in
// the order of reductions, which is the same on all ranks, while the next units are being read.
void Engine::prepare_write_to_shards(Unit& unit) {
  if (!unit.shares_shards()) {
    return;
  }
  const bool in_backward = seams::current_backward() != -1;
  for (schedule::ScheduledUnit* gathered :
       in_backward ? std::vector<schedule::ScheduledUnit*>() : residency_.gathered()) {
    Unit* other = &as_unit(*gathered);
    std::lock_guard lock(other->mutex);
    if (other->gathering() && other->shares_shards()) {
      finish_gather(*other);
    }
    if (other->gathered() && other->reads_shards() && other->pins == 0) {
      release(*other);
    }
  }
  std::lock_guard lock(unit.mutex);
  if (unit.gathering()) {
    ensure_gathered(unit);
  }
  if (unit.gathered() && unit.reads_shards()) {
    TORCH_CHECK(unit.pins == 0, "fsdp: ", unit.where(),
                ": its shards were written while the unit was pinned and its parameters were views of the shards. "
                "Write after the scope of pin() has ended");
    release(unit);
  }
  unit.await_readers();
}

void Engine::reset() {
  discard_captures();
  forget_accumulated();
  reshard();
}

void Engine::pin(const std::vector<Unit*>& units, const std::function<void()>& body) {
  std::vector<Unit*> entered;
  Finally unpin([&] {
    for (Unit* unit : entered) {
      leave(*unit);
    }
  });
  for (Unit* unit : units) {
    hold(*unit);
    entered.push_back(unit);
  }
  body();
}

std::vector<Unit*> Engine::units_of(const void* module) const {
  std::vector<Unit*> found;
  for (const auto& unit : units_) {
    const auto& modules = unit->modules();
    if (std::any_of(modules.begin(), modules.end(), [&](const auto& known) { return known.identity == module; })) {
      found.push_back(unit.get());
    }
  }
  TORCH_CHECK(!found.empty(), "fsdp: rank ", mesh().rank(),
              ": no unit was made for this module itself; units are made ",
              "for modules that fully_shard was called on or that the wrap policy picked (see describe_units)");
  return found;
}

std::vector<Unit*> Engine::all_units() const {
  std::vector<Unit*> all;
  for (const auto& unit : units_) {
    all.push_back(unit.get());
  }
  return all;
}

// Copies back only elements that were written. If an unsharded value still is the rounded shard value, the shard keeps
// its full precision.
void Engine::write_back(Unit& unit) {
  std::lock_guard lock(unit.mutex);
  TORCH_CHECK(unit.stamp == unit.shard_version(), "fsdp: ", unit.where(),
              ": its shards were written inside with_full_params (an optimizer step?), and writing back its parameters "
              "would overwrite them. Write to the shards or to the parameters, not to both");
  seams::CleanDispatchGuard clean;
  unit.await_readers();
  for (auto& flat : unit.flat_parameters()) {
    at::Tensor full = unit.unsharded(*flat);
    if (!full.defined()) {
      seams::bump_version(flat->shard());
      continue;
    }
    int64_t n = flat->layout().shard_numel();
    at::Tensor own = full.narrow(0, flat->position().rank * n, n).to(flat->shard().device());
    at::Tensor written = bits_of(own).ne(bits_of(flat->shard().to(flat->dtypes().compute)));
    flat->shard().copy_(at::where(written, own.to(flat->dtypes().shard), flat->shard()));
    seams::bump_version(flat->shard());
  }
  unit.invalidate_saved_values();
  unit.unpark(parameter_pool_);
  unit.stamp = unit.shard_version();
}

EngineStats Engine::stats() const {
  EngineStats stats;
  stats.units = static_cast<int64_t>(units_.size());
  stats.all_gathers = all_gathers_;
  stats.prefetches = prefetches_;
  stats.prefetches_wasted = prefetches_wasted_;
  stats.gathered_bytes = parameter_pool_.in_use_bytes();
  stats.peak_gathered_bytes = parameter_pool_.peak_bytes();
  stats.reduce_scatters = reducer_.reduce_scatters();
  stats.all_reduces = reducer_.all_reduces();
  stats.gradient_buffer_bytes = reducer_.pool().in_use_bytes();
  stats.peak_gradient_buffer_bytes = reducer_.pool().peak_bytes();
  stats.gathered_units = residency_.count();
  stats.peak_gathered_units = residency_.peak_count();
  return stats;
}

void Engine::set_strict_release(bool on) {
  reshard();
  strict_ = on;
  may_alias_ = !on;
  parameter_pool_.set_poison(on);
}

}  // namespace fsdp
