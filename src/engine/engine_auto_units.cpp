// Makes units from the order in which parameters were used (Options::auto_units).
#include <algorithm>
#include <functional>
#include <tuple>

#include "base/finally.h"
#include "engine/engine.h"
#include "engine/whole_parameters.h"
#include "schedule/unit_cut.h"
#include "schedule/use_record.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/gradient_hooks.h"
#include "torch_seams/shard_version.h"

namespace fsdp {

using namespace schedule;

namespace {

// The number of elements beyond which a larger all-gather is hardly faster (FSDP paper, figure 2).
constexpr int64_t kLargestUsefulUnit = 33'000'000;

// [Note: when units are cut]
// Units are cut between the first forward and the first backward. The order is known by then, no gradient has been
// captured, and no optimizer has stepped. State that an optimizer has made for leaves, which change their sizes, has no
// values yet that could not be made anew ([Note: state made before units are cut] in engine/leaf_companions.h). The
// module's tensors, their storages and the leaves stay the same objects, so the graph of that forward, including its
// saved tensors, belongs to the new units.

// Returns the text of global rank 0. If parameters are not gathered (NO_SHARD), ranks may have used them in different
// orders.
std::string text_of_rank_0(const ProcessMesh& mesh, std::string text) {
  std::vector<Communicator*> groups = {mesh.world.get()};
  if (!mesh.world) {
    groups = {mesh.replicate.get(), mesh.shard.get()};
  }
  for (Communicator* group : groups) {
    text = group->all_gather_bytes(text, {"order of parameters", 0, Pass::kSetup}).front();
  }
  return text;
}

CutItem cut_item(const UseRecord::Use& use) {
  CutItem item{.returns = use.returns, .joins = use.joins};
  for (ScheduledUnit* member : use.units) {
    Unit* unit = &as_unit(*member);
    const FlatParameter& flat = *unit->flat_parameters().front();
    int64_t nbytes = flat.layout().numel(0) * static_cast<int64_t>(c10::elementSize(flat.dtypes().compute));
    item.nbytes += nbytes;
    item.gathered_nbytes += flat.shard_is_whole() ? 0 : nbytes;
    item.gradient_nbytes += flat.requires_grad() ? unit->gradient(0)->buffer_nbytes() : 0;
    item.adopts = use.units.size() == 1 && flat.requires_grad() && unit->gradient(0)->may_adopt();
  }
  return item;
}

// Returns the memory of a future FlatParameter, filled with this rank's part of the members' values.
FlatParameter::Moved gather_parts(const std::vector<Unit*>& members, ShardPosition position) {
  FlatParameter::Moved moved;
  std::vector<int64_t> numels;
  for (Unit* member : members) {
    numels.push_back(member->flat_parameters().front()->layout().numel(0));
  }
  FlatLayout layout(numels, position.factor);
  seams::CleanDispatchGuard clean;
  const FlatParameter& first = *members.front()->flat_parameters().front();
  moved.shard = first.memory().zeros(layout.shard_numel(), first.dtypes().shard);
  for (size_t i = 0; i < members.size(); ++i) {
    FlatParameter& flat = *members[i]->flat_parameters().front();
    ParameterSlice part = layout.slice(static_cast<int64_t>(i), position.rank);
    at::Tensor whole = gather_values(*members[i], flat);
    moved.shard.narrow(0, part.shard_offset, part.numel()).copy_(whole.slice(0, part.begin, part.end));
    moved.parameters.push_back(flat.parameters().front());
    moved.leaves.push_back(flat.original_leaves().front());
  }
  return moved;
}

// Updates tensors that were made like the leaves of the members. These leaves now belong to another unit.
void follow_leaves(const std::vector<Unit*>& members) {
  for (const Unit* member : members) {
    const FlatParameter& flat = *member->flat_parameters().front();
    if (!member->companions.empty()) {
      member->engine->with_offloaded_memory(
          [&] { member->companions.follow(flat.original_leaves().front(), seams::version_of(flat.shard())); });
    }
  }
}

CutRules cut_rules(const AutoUnits& options, const Unit& member, const OverlapOptions& overlap) {
  bool all_reduces = !member.groups().shard || member.groups().replicate;
  int64_t element = static_cast<int64_t>(c10::elementSize(member.flat_parameters().front()->dtypes().compute));
  return {.target_nbytes = options.target_bytes,
          .max_target_nbytes = kLargestUsefulUnit * element,
          .bound_nbytes = options.memory_bound,
          .gathered_at_a_time = overlap.max_gathered_units,
          .gradients_at_a_time = all_reduces ? size_t{3} : size_t{2},
          .reshards = !member.stays_gathered()};
}

void check_fits(const UnitCut& cut, const AutoUnits& options, const Unit& member) {
  TORCH_CHECK(cut.fits, "fsdp: rank ", member.engine->mesh().rank(), ": auto_units: memory_bound of ",
              *options.memory_bound,
              " bytes is too small: even with the smallest units (the parameters of one operator), "
              "gathered parameters and gradient buffers take ",
              cut.planned_nbytes, " bytes at a time. Raise memory_bound, or lower Options::max_gathered_units");
}

// Groups the members that can share a FlatParameter, in order of first appearance.
std::vector<std::vector<Unit*>> group_members(const std::vector<Unit*>& members) {
  auto key = [](Unit* unit) {
    const FlatParameter& flat = *unit->flat_parameters().front();
    return std::tuple(flat.dtypes().shard, flat.requires_grad(), flat.parameters().front().full_precision);
  };
  std::vector<std::vector<Unit*>> groups;
  for (Unit* member : members) {
    auto it =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return key(group[0]) == key(member); });
    (it == groups.end() ? groups.emplace_back() : *it).push_back(member);
  }
  return groups;
}

}  // namespace

void Engine::cut_later(Unit& unit, const std::shared_ptr<UseRecord>& record) {
  unit.to_be_cut = record;
  unit.flat_parameters().front()->watch_shard(&unit);
  const ShardedParameter& parameter = unit.parameter(0);
  std::vector<std::string> fqns = {parameter.fqn};
  fqns.insert(fqns.end(), parameter.other_fqns.begin(), parameter.other_fqns.end());
  record->add(&unit, std::move(fqns));
  if (std::find(use_records_.begin(), use_records_.end(), record) == use_records_.end()) {
    use_records_.push_back(record);
  }
}

void Engine::cut_units(const UseRecord* only) {
  auto concerned = [&](const std::shared_ptr<UseRecord>& record) { return !only || record.get() == only; };
  auto first = std::stable_partition(use_records_.begin(), use_records_.end(), std::not_fn(concerned));
  std::vector<std::shared_ptr<UseRecord>> records(first, use_records_.end());
  if (records.empty()) {
    return;
  }
  prepare();
  end_pass(Pass::kForward);
  check_ready_to_cut();
  reshard();
  reducer_.finish_all();
  for (const std::shared_ptr<UseRecord>& record : records) {
    cut(*record);
    std::erase(use_records_, record);
  }
  verify_plan();
}

void Engine::cut_before_backward(const Unit& unit) {
  if (seams::current_backward() != -1 && !unit.shards_written()) {
    cut_units();
  }
}

void Engine::check_ready_to_cut() {
  for (auto& unit : units_) {
    if (!unit->to_be_cut) {
      continue;
    }
    std::lock_guard lock(unit->mutex);
    TORCH_CHECK(unit->pins == 0 && unit->write_scopes == 0, "fsdp: ", unit->where(),
                ": auto_units cuts units when the first backward begins, but this one began inside pin(), "
                "summon_full_params or an operator that uses the unit. Call ShardedModule::cut_units first");
    const std::vector<at::Tensor>& leaves = unit->flat_parameters().front()->original_leaves();
    TORCH_CHECK(!leaves.front().grad().defined(), "fsdp: ", unit->where(),
                ": auto_units cuts units when the first backward begins, but a gradient was assigned to a leaf before. "
                "Assign it after ShardedModule::cut_units");
    unit->companions.check_unwritten(unit->where());
  }
}

void Engine::cut(UseRecord& record) {
  const std::vector<UseRecord::Use> order = record.order_from(text_of_rank_0(mesh(), record.order_text()));
  std::vector<CutItem> items;
  std::transform(order.begin(), order.end(), std::back_inserter(items), cut_item);
  UnitCut cut = cut_into_units(items, cut_rules(record.options(), as_unit(*record.first()), options_.overlap));
  check_fits(cut, record.options(), as_unit(*record.first()));
  note_order(order);
  std::vector<ScheduledUnit*> united_in_order;
  {
    Successors successors;
    Finally forget_members([&] { forget(successors); });
    for (size_t i = 0; i < cut.units.size(); ++i) {
      std::vector<Unit*> members;
      for (size_t item : cut.units[i]) {
        std::transform(order[item].units.begin(), order[item].units.end(), std::back_inserter(members),
                       [](ScheduledUnit* member) { return &as_unit(*member); });
      }
      units_.push_back(unite(members));
      follow_leaves(members);
      units_.back()->set_root(cut.has_root && i == 0);
      united_in_order.push_back(units_.back().get());
      for (Unit* member : members) {
        member->retire(parameter_pool_);  // here, because the next unit needs the memory
        successors[member] = units_.back().get();
      }
    }
  }
  reduction_order_.reorder(united_in_order);  // the order of rank 0
}

// Makes one unit of the members. If this fails, the members stay as they were, and units made before stay as well.
std::unique_ptr<Unit> Engine::unite(const std::vector<Unit*>& members) {
  auto united = std::make_unique<Unit>(*this, UnitOrigin{members.front()->modules(), /*automatic=*/true},
                                       members.front()->options());
  std::vector<FlatParameter::Moved> groups;
  for (const std::vector<Unit*>& group : group_members(members)) {
    groups.push_back(gather_parts(group, united->groups().position()));
  }
  for (FlatParameter::Moved& group : groups) {
    united->add(std::move(group));
  }
  united->name_it();
  for (Unit* member : members) {
    united->used_outside_backward |= member->used_outside_backward;
    if (member->shards_written()) {
      member->invalidate_saved_values();
    }
    if (member->stamp) {
      united->stamp = united->shard_version();
    }
  }
  return united;
}

// Replaces retired units by the units that have their parameters now. Called once for all of them, because it walks
// over all units.
void Engine::forget(const Successors& successors) {
  const auto successor = [&](ScheduledUnit* unit) {
    const auto found = successors.find(unit);
    return found == successors.end() ? unit : found->second;
  };
  residency_.replace(successor);
  reduction_order_.replace(successor);
  auto is_retired = [&](const std::unique_ptr<Unit>& unit) { return successors.count(unit.get()) > 0; };
  auto first = std::stable_partition(units_.begin(), units_.end(), std::not_fn(is_retired));
  std::move(first, units_.end(), std::back_inserter(retired_units_));
  units_.erase(first, units_.end());
}

// An operator pins all units that it uses before it runs. So if the previous unit is still pinned, the same operator
// uses both, except in a scope of the user's pin(), which pins this unit as well.
void Engine::note_use(const Unit& unit) {
  if (use_records_.empty()) {
    return;
  }
  const ScheduledUnit* before = residency_.visited();
  std::lock_guard lock(records_mutex_);
  for (const std::shared_ptr<UseRecord>& record : use_records_) {
    record->visit(&unit, before && as_unit(*before).pins > 0 && unit.pins == 0);
  }
}

void Engine::note_order(const std::vector<UseRecord::Use>& order) {
  for (const UseRecord::Use& use : order) {
    OrderedUse& ordered = execution_order_.emplace_back();
    ordered.returns = use.returns;
    ordered.joins = use.joins;
    for (ScheduledUnit* unit : use.units) {
      ordered.owners.push_back(as_unit(*unit).parameter(0).owner);
    }
  }
}

ExecutionOrder Engine::execution_order() const {
  ExecutionOrder order, again;
  for (const OrderedUse& use : execution_order_) {
    std::vector<std::string> fqns;
    for (const seams::StorageOwnerPtr& owner : use.owners) {
      fqns.push_back(static_cast<Unit*>(owner->unit.load())->parameter(owner->index).fqn);
    }
    if (!use.joins && !order.empty()) {
      order.emplace_back();
    }
    order.push_back(fqns);
    if (use.returns) {
      again.push_back(fqns);
    }
  }
  order.insert(order.end(), again.begin(), again.end());
  return order;
}

}  // namespace fsdp
