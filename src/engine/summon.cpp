// The part of the engine for whole parameters: scopes, visits, updates.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/finally.h"
#include "engine/engine.h"
#include "engine/whole_parameters.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp {
namespace {

void check(const SummonOptions& options, const Engine& engine) {
  TORCH_CHECK(!options.rank0_only || !options.writeback,
              "fsdp: summon_full_params: rank0_only cannot be combined with ",
              "writeback: the other ranks would not see what rank 0 has written. Set writeback to false");
  TORCH_CHECK(!options.offload_to_cpu || engine.device().is_cpu(),
              "fsdp: summon_full_params: offload_to_cpu: ", "the module's parameters are on ", engine.device(),
              "; use for_each_full_parameter with offload_to_cpu, which hands out copies on the host");
}

// Chooses the rank of the shard group that updates each parameter: the rank with the least to do so far.
class Owners {
 public:
  explicit Owners(int64_t ranks) : load_(ranks, 0) {}
  int64_t next(int64_t numel) {
    auto least = std::min_element(load_.begin(), load_.end());
    *least += numel;
    return least - load_.begin();
  }

 private:
  std::vector<int64_t> load_;
};

// [Note: updates by owners]
// Each parameter is updated on one rank of the shard group, its owner. The other ranks need parts of the result. It
// travels as a reduce-scatter to which all ranks but the owner contribute zeros: sums of one value and zeros are exact,
// and each rank receives its shard and nothing else. Owners depend only on sizes, so they stay the same from step to
// step, as optimizer state requires.

// Gives every rank its part of the values that the owners have computed.
void share_values(Unit& unit, FlatParameter& flat, const at::Tensor& values) {
  seams::CleanDispatchGuard clean;
  const FlatLayout& layout = flat.layout();
  unit.engine->prepare_write_to_shards(unit);
  const at::Tensor shard = flat.shard().detach();
  if (flat.position().factor > 1) {
    const at::Tensor part = flat.memory().apart() ? at::empty(shard.sizes(), values.options()) : shard;
    values.narrow(0, layout.unpadded_numel(), layout.padding()).zero_();
    unit.groups().shard->reduce_scatter(part, values, {}, unit.next_id(Pass::kUser))->wait();
    if (flat.memory().apart()) {
      shard.copy_(part);
    }
  } else if (flat.memory().apart()) {
    shard.copy_(values);
  }
  seams::bump_version(flat.shard());
}

void update_flat(Unit& unit, size_t index, Owners& owners, const std::function<void(const WholeParameter&)>& update) {
  FlatParameter& flat = *unit.flat_parameters()[index];
  WholeGradient gradient = gather_gradient(unit, index);
  at::Tensor values = gather_values(unit, flat);
  for (int64_t i = 0; i < flat.layout().num_parameters(); ++i) {
    bool mine = owners.next(flat.layout().numel(i)) == flat.position().rank;
    at::Tensor value = flat.view_in(values, i);
    if (mine && gradient.defined.test(i)) {
      update({flat.parameters()[i].fqn, value, flat.view_in(gradient.flat, i)});
    } else if (!mine) {
      seams::CleanDispatchGuard clean;
      value.zero_();
    }
  }
  share_values(unit, flat, values);
}

}  // namespace

void Engine::summon_full_params(const SummonOptions& options, const std::function<void()>& body) {
  check(options, *this);
  settle_gradients();
  std::vector<Unit*> units = all_units();
  if (!options.recurse) {
    std::erase_if(units, [](const Unit* unit) { return !unit->is_of_root(); });
  }
  std::deque<SummonedGradients> gradients;
  if (options.with_grads) {
    prepare();
    for (Unit* unit : units) {
      gradients.emplace_back(*unit);
    }
  }
  auto run = [&] {
    body();
    if (options.writeback) {
      for (SummonedGradients& of_unit : gradients) {
        of_unit.write_back();
      }
    }
  };
  options.rank0_only ? run_on_rank_0(units, run) : run_in_write_scope(units, options.writeback, run);
}

void Engine::run_on_rank_0(const std::vector<Unit*>& units, const std::function<void()>& body) {
  if (mesh().rank() == 0) {
    run_in_write_scope(units, /*writeback=*/false, body);
    return;
  }
  // The other ranks take part in the gathers, in the same order. Afterwards nothing may be touched.
  run_in_write_scope(units, /*writeback=*/false, [] {});
  auto close = [&](bool closed) {
    for (Unit* unit : units) {
      unit->only_on_rank_0 = closed;
    }
  };
  close(true);
  Finally open([&] { close(false); });
  body();
}

void Engine::run_in_write_scope(const std::vector<Unit*>& units, bool writeback, const std::function<void()>& body) {
  // Writes that are dropped in the end (no write-back, or an exception) must not go to the shards themselves.
  bool may_alias = may_alias_;
  Finally restore([&] { may_alias_ = may_alias; });
  reshard();
  may_alias_ = false;
  pin(units, [&] {
    bool keep = false;  // whether to keep what was written; false after an exception
    for (Unit* unit : units) {
      ++unit->write_scopes;
    }
    Finally close([&] {
      for (Unit* unit : units) {
        --unit->write_scopes;
        unit->release_when_unpinned |= !keep;
      }
    });
    body();
    if (writeback) {
      for (Unit* unit : units) {
        write_back(*unit);
      }
      keep = true;
    }
  });
}

void Engine::for_each_full_parameter(const std::function<void(const std::string&, const at::Tensor&)>& visit,
                                     const FullParameterOptions& options) {
  prepare();
  bool visits = !options.rank0_only || mesh().rank() == 0;
  for (auto& unit : units_) {
    unit->check_membership();
    for (auto& flat : unit->flat_parameters()) {
      at::Tensor full = gather_values(*unit, *flat);
      for (size_t i = 0; visits && i < flat->parameters().size(); ++i) {
        at::Tensor whole = flat->view_in(full, static_cast<int64_t>(i));
        visit(flat->parameters()[i].fqn,
              options.offload_to_cpu ? whole.to(at::kCPU, whole.scalar_type(), false, true) : whole);
      }
    }
  }
}

void Engine::update_whole_parameters(const std::function<void(const WholeParameter&)>& update) {
  prepare();
  settle_gradients();
  std::map<int64_t, Owners> owners;  // by the size of the shard group
  for (auto& unit : units_) {
    unit->check_membership();
    for (size_t f = 0; f < unit->flat_parameters().size(); ++f) {
      if (unit->flat_parameters()[f]->requires_grad()) {
        int64_t factor = unit->flat_parameters()[f]->position().factor;
        update_flat(*unit, f, owners.try_emplace(factor, factor).first->second, update);
      }
    }
  }
}

}  // namespace fsdp
