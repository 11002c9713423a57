#include "engine/full_parameters.h"

#include <ATen/ops/where.h>

#include <deque>

#include "base/finally.h"
#include "engine/membership.h"
#include "engine/whole_parameters.h"
#include "flat/rank_order.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {
namespace {

void check(const SummonOptions& options, const Engine& engine) {
  TORCH_CHECK(!options.rank0_only || !options.writeback,
              "fsdp: summon_full_params: rank0_only cannot be combined with ",
              "writeback: the other ranks would not see what rank 0 has written. Set writeback to false");
  TORCH_CHECK(!options.offload_to_cpu || engine.device().is_cpu(),
              "fsdp: summon_full_params: offload_to_cpu: ", "the module's parameters are on ", engine.device(),
              "; use for_each_full_parameter with offload_to_cpu, which hands out copies on the host");
}

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

// Copies back only elements that were written. If an unsharded value still is the rounded shard value, the shard keeps
// its full precision.
void write_back_flat(const flat::FlatParameter& flat, const at::Tensor& full) {
  const at::Tensor own = own_part(flat, full).to(flat.shard().device());
  const at::Tensor written = bits_of(own).ne(bits_of(flat.shard().to(flat.dtypes().compute)));
  flat.shard().copy_(at::where(written, own.to(flat.dtypes().shard), flat.shard()));
}

// Values that were written in a dtype that the shards' does not contain become those that the next gather would give.
// Otherwise a unit that stays gathered would compute with other values than its shards have.
void round_as_shards(const flat::FlatParameter& flat, const at::Tensor& full) {
  const at::ScalarType shard = flat.dtypes().shard;
  if (c10::promoteTypes(shard, full.scalar_type()) == shard) return;
  for (int64_t i = 0; i < flat.layout().num_parameters(); ++i) {
    const at::Tensor value = flat.view_in(full, i);
    value.copy_(value.to(shard));
  }
}

// Copies what was written to the gathered parameters of a pinned unit to its shards.
void write_back(Engine& engine, Unit& unit) {
  base::MutexLock lock(unit.mutex);
  TORCH_CHECK(unit.versions.up_to_date(), "fsdp: ", unit.where(),
              ": its shards were written inside with_full_params (an optimizer step?), and writing back its parameters "
              "would overwrite them. Write to the shards or to the parameters, not to both");
  seams::CleanDispatchGuard clean;
  unit.await_readers();
  for (const auto& flat : unit.flat_parameters()) {
    if (const at::Tensor& full = unit.buffers.of(*flat); full.defined()) {
      write_back_flat(*flat, full);
      round_as_shards(*flat, full);
    }
    seams::bump_version(flat->shard());
  }
  unit.versions.invalidate_saved_values();
  unit.buffers.unpark(engine.memory().parameters());
  unit.versions.note_seen();
}

// Runs `body` while the units' parameters may be written, and then writes them back if `writeback`.
void run_in_write_scope(Engine& engine, const std::vector<Unit*>& units, bool writeback,
                        const std::function<void()>& body) {
  // Writes that are discarded in the end (no write-back, or an exception) must not go to the shards themselves.
  Gatherer& gatherer = engine.gatherer();
  const bool may_alias = gatherer.may_alias();
  base::Finally restore([&] { gatherer.set_may_alias(may_alias); });
  gatherer.reshard_all();
  gatherer.set_may_alias(false);
  engine.pin(units, [&] {
    bool keep = false;  // whether to keep what was written; false after an exception
    for (Unit* unit : units) {
      base::MutexLock lock(unit->mutex);
      unit->use.open_write_scope();
    }
    base::Finally close([&] {
      for (Unit* unit : units) {
        base::MutexLock lock(unit->mutex);
        unit->use.close_write_scope();
        if (!keep) unit->use.release_when_unpinned();
      }
    });
    body();
    if (writeback) {
      for (Unit* unit : units) write_back(engine, *unit);
      keep = true;
    }
  });
}

void forbid_uses(const std::vector<Unit*>& units, bool on) {
  for (Unit* unit : units) {
    base::MutexLock lock(unit->mutex);
    unit->use.forbid(on);
  }
}

// The other ranks take part in the gathers, in the same order. Afterwards nothing may be touched.
void run_on_rank_0(Engine& engine, const std::vector<Unit*>& units, const std::function<void()>& body) {
  if (engine.mesh().rank() == 0) {
    run_in_write_scope(engine, units, /*writeback=*/false, body);
    return;
  }
  run_in_write_scope(engine, units, /*writeback=*/false, [] {});
  forbid_uses(units, true);
  base::Finally allow([&] { forbid_uses(units, false); });
  body();
}

void check_whole(const Unit& unit) {
  for (const auto& flat : unit.flat_parameters()) {
    TORCH_CHECK(!flat->is_part(), "fsdp: ", unit.where(),
                ": summon_full_params needs whole parameters, but parameter '", flat->parameters().front().fqn, "' is ",
                flat->parameters().front().part->describe(),
                " (tensor parallelism). Read whole values with for_each_full_parameter, write them with "
                "update_whole_parameters");
  }
}

}  // namespace

void summon_full_params(Engine& engine, const SummonOptions& options, const std::function<void()>& body) {
  check(options, engine);
  for (const auto& unit : engine.units()) check_whole(*unit);
  engine.passes().settle_gradients();
  std::vector<Unit*> units = engine.tree().all();
  if (!options.recurse) std::erase_if(units, [](const Unit* unit) { return !unit->is_of_root(); });
  std::deque<SummonedGradients> gradients;
  if (options.with_grads) {
    engine.preparation().ensure();
    for (Unit* unit : units) gradients.emplace_back(*unit);
  }
  const auto run = [&] {
    body();
    if (options.writeback) {
      for (SummonedGradients& of_unit : gradients) of_unit.write_back();
    }
  };
  options.rank0_only ? run_on_rank_0(engine, units, run) : run_in_write_scope(engine, units, options.writeback, run);
}

void for_each_full_parameter(Engine& engine, const std::function<void(const std::string&, const at::Tensor&)>& visit,
                             const FullParameterOptions& options) {
  engine.preparation().ensure();
  const bool visits = !options.rank0_only || engine.mesh().is_first();
  for (const auto& unit : engine.units()) {
    check_membership(*unit);
    for (const auto& flat : unit->flat_parameters()) {
      at::Tensor full = gather_values(*unit, *flat);
      for (size_t i = 0; (visits || flat->is_part()) && i < flat->parameters().size(); ++i) {
        const flat::ShardedParameter& parameter = flat->parameters()[i];
        at::Tensor whole = flat->view_in(full, static_cast<int64_t>(i));
        if (parameter.part) {
          whole = engine.options().exchange->whole_of(whole, *parameter.part, parameter.fqn);
        }
        if (visits) {
          visit(parameter.fqn, options.offload_to_cpu ? whole.to(at::kCPU, whole.scalar_type(), false, true) : whole);
        }
      }
    }
  }
}

}  // namespace fsdp::engine
