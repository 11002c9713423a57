#include "engine/unit_cutter.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>

#include "base/finally.h"
#include "engine/whole_parameters.h"
#include "schedule/unit_cut.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {

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
  if (!mesh.world) groups = {mesh.replicate.get(), mesh.shard.get()};
  for (Communicator* group : groups) {
    text = group->all_gather_bytes(text, {"order of parameters", 0, Pass::kSetup}).front();
  }
  return text;
}

CutItem cut_item(const UseRecord::Use& use) {
  CutItem item{.returns = use.returns, .joins = use.joins};
  for (ScheduledUnit* member : use.units) {
    Unit* unit = &as_unit(*member);
    const flat::FlatParameter& flat = *unit->flat_parameters().front();
    int64_t nbytes = flat.layout().numel(0) * static_cast<int64_t>(c10::elementSize(flat.dtypes().compute));
    item.nbytes += nbytes;
    item.gathered_nbytes += flat.shard_is_whole() ? 0 : nbytes;
    item.gradient_nbytes += flat.requires_grad() ? unit->gradients().of(0)->buffer_nbytes() : 0;
    item.adopts = use.units.size() == 1 && flat.requires_grad() && unit->gradients().of(0)->may_adopt();
  }
  return item;
}

// Returns the memory of a future FlatParameter, filled with this rank's part of the members' values.
flat::FlatParameter::Moved gather_parts(const std::vector<Unit*>& members, const flat::ShardPosition& position) {
  flat::FlatParameter::Moved moved;
  std::vector<flat::ParameterExtent> extents;
  for (Unit* member : members) extents.push_back(member->flat_parameters().front()->layout().extent(0));
  const flat::FlatParameter& first = *members.front()->flat_parameters().front();
  flat::FlatLayout layout(extents, position.factor, first.position().cut);
  seams::CleanDispatchGuard clean;
  moved.shard = first.memory().zeros(layout.shard_numel(), first.dtypes().shard);
  for (size_t i = 0; i < members.size(); ++i) {
    flat::FlatParameter& flat = *members[i]->flat_parameters().front();
    flat::ParameterSlice part = layout.slice(static_cast<int64_t>(i), position.rank);
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
    const flat::FlatParameter& flat = *member->flat_parameters().front();
    const LeafCompanions& companions = member->pending_cut()->companions;
    if (!companions.empty()) {
      member->context().options.memory.with_offloaded_memory(
          [&] { companions.follow(flat.original_leaves().front(), seams::version_of(flat.shard())); });
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
  TORCH_CHECK(cut.fits, "fsdp: ", member.context().where(), ": auto_units: memory_bound of ", *options.memory_bound,
              " bytes is too small: even with the smallest units (the parameters of one operator), "
              "gathered parameters and gradient buffers take ",
              cut.needed_nbytes, " bytes at a time. Raise memory_bound, or lower Options::max_gathered_units");
}

// Groups the members that can share a FlatParameter, in order of first appearance.
std::vector<std::vector<Unit*>> group_members(const std::vector<Unit*>& members) {
  auto key = [](Unit* unit) {
    const flat::FlatParameter& flat = *unit->flat_parameters().front();
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

UnitCutter::UnitCutter(UnitContext& context, UnitTree& tree, MemoryAccount& memory, Gatherer& gatherer,
                       GradientFlow& gradients)
    : context_(context), tree_(tree), memory_(memory), gatherer_(gatherer), gradients_(gradients) {}

void UnitCutter::cut_later(Unit& unit, const std::shared_ptr<UseRecord>& record) {
  unit.cut_later(record);
  const flat::ShardedParameter& parameter = unit.parameter(0);
  std::vector<std::string> fqns = {parameter.fqn};
  fqns.insert(fqns.end(), parameter.other_fqns.begin(), parameter.other_fqns.end());
  base::MutexLock lock(mutex_);
  record->add(&unit, std::move(fqns));
  if (std::find(records_.begin(), records_.end(), record) == records_.end()) records_.push_back(record);
  has_records_ = true;
}

void UnitCutter::absorb(UnitCutter& inner) {
  base::MutexLock lock(mutex_);
  base::MutexLock lock_inner(inner.mutex_);
  std::move(inner.records_.begin(), inner.records_.end(), std::back_inserter(records_));
  inner.records_.clear();
  has_records_ = !records_.empty();
  std::move(inner.execution_order_.begin(), inner.execution_order_.end(), std::back_inserter(execution_order_));
  inner.execution_order_.clear();
}

std::vector<std::shared_ptr<UseRecord>> UnitCutter::records(const UseRecord* only) const {
  base::MutexLock lock(mutex_);
  std::vector<std::shared_ptr<UseRecord>> found;
  std::copy_if(records_.begin(), records_.end(), std::back_inserter(found),
               [&](const auto& record) { return !only || record.get() == only; });
  return found;
}

// An operator pins all units that it uses before it runs. So if the previous unit is still pinned, the same operator
// uses both, except in a scope of the user's pin(), which pins this unit as well.
void UnitCutter::note_use(Unit& unit) {
  if (!has_records_) return;
  const bool same_operator = gatherer_.last_visited_is_pinned() && !unit.is_pinned();
  base::MutexLock lock(mutex_);
  for (const std::shared_ptr<UseRecord>& record : records_) record->visit(&unit, same_operator);
}

// ---------------------------------------------------------------- cutting

void UnitCutter::check_ready() const {
  for (const auto& unit : tree_.units()) {
    if (!unit->pending_cut()) continue;
    base::MutexLock lock(unit->mutex);
    TORCH_CHECK(!unit->use.pinned() && !unit->use.writable(), "fsdp: ", unit->where(),
                ": auto_units cuts units when the first backward begins, but this one began inside pin(), "
                "summon_full_params or an operator that uses the unit. Call ShardedModule::cut_units first");
    const std::vector<at::Tensor>& leaves = unit->flat_parameters().front()->original_leaves();
    TORCH_CHECK(!leaves.front().grad().defined(), "fsdp: ", unit->where(),
                ": auto_units cuts units when the first backward begins, but a gradient was assigned to a leaf before. "
                "Assign it after ShardedModule::cut_units");
    unit->pending_cut()->companions.check_unwritten(unit->where());
  }
}

void UnitCutter::cut(const std::shared_ptr<UseRecord>& record) {
  const ProcessMesh& mesh = context_.options.mesh;
  const std::vector<UseRecord::Use> order = record->order_from(text_of_rank_0(mesh, record->order_text()));
  std::vector<CutItem> items;
  std::transform(order.begin(), order.end(), std::back_inserter(items), cut_item);
  const Unit& first = as_unit(*record->first());
  const UnitCut cut = cut_into_units(items, cut_rules(record->options(), first, context_.options.overlap));
  check_fits(cut, record->options(), first);
  note_order(order);
  gradients_.reorder(make_units(cut, order));  // the order of rank 0
  base::MutexLock lock(mutex_);
  std::erase(records_, record);
  has_records_ = !records_.empty();
}

std::vector<ScheduledUnit*> UnitCutter::make_units(const UnitCut& cut, const std::vector<UseRecord::Use>& order) {
  std::vector<ScheduledUnit*> made;
  Successors successors;
  // Called once for all of them, because it walks over all units.
  base::Finally retire_members([&] {
    const auto successor = [&](ScheduledUnit* unit) -> ScheduledUnit* {
      const auto found = successors.find(unit);
      return found == successors.end() ? unit : found->second;
    };
    gatherer_.replace(successor);
    gradients_.replace(successor);
    tree_.retire(successors);
  });
  for (size_t i = 0; i < cut.units.size(); ++i) {
    std::vector<Unit*> members;
    for (size_t item : cut.units[i]) {
      std::transform(order[item].units.begin(), order[item].units.end(), std::back_inserter(members),
                     [](ScheduledUnit* member) { return &as_unit(*member); });
    }
    Unit& united = tree_.add(unite(members));
    follow_leaves(members);
    united.set_root(cut.has_root && i == 0);
    made.push_back(&united);
    for (Unit* member : members) {
      member->retire(memory_.parameters());  // here, because the next unit needs the memory
      successors[member] = &united;
    }
  }
  return made;
}

// Makes one unit of the members. If this fails, the members stay as they were, and units made before stay as well.
std::unique_ptr<Unit> UnitCutter::unite(const std::vector<Unit*>& members) {
  auto united = std::make_unique<Unit>(context_, UnitOrigin{members.front()->names().modules(), /*automatic=*/true},
                                       members.front()->options());
  std::vector<flat::FlatParameter::Moved> groups;
  for (const std::vector<Unit*>& group : group_members(members)) {
    groups.push_back(gather_parts(group, united->groups().position()));
  }
  for (flat::FlatParameter::Moved& group : groups) united->add(std::move(group));
  united->name_it();
  base::MutexLock lock(united->mutex);
  for (const Unit* member : members) {
    base::MutexLock lock_member(member->mutex);
    united->versions.take_over(member->versions);
  }
  return united;
}

// ---------------------------------------------------------------- the order of uses

void UnitCutter::note_order(const std::vector<UseRecord::Use>& order) {
  base::MutexLock lock(mutex_);
  for (const UseRecord::Use& use : order) {
    OrderedUse& ordered = execution_order_.emplace_back();
    ordered.returns = use.returns;
    ordered.joins = use.joins;
    for (ScheduledUnit* unit : use.units) ordered.owners.push_back(as_unit(*unit).parameter(0).owner);
  }
}

ExecutionOrder UnitCutter::execution_order() const {
  base::MutexLock lock(mutex_);
  ExecutionOrder order, again;
  for (const OrderedUse& use : execution_order_) {
    std::vector<std::string> fqns;
    for (const seams::StorageOwnerPtr& owner : use.owners) fqns.push_back(unit_of(*owner)->parameter(owner->index).fqn);
    if (!use.joins && !order.empty()) order.emplace_back();
    order.push_back(fqns);
    if (use.returns) again.push_back(fqns);
  }
  order.insert(order.end(), again.begin(), again.end());
  return order;
}

}  // namespace fsdp::engine
