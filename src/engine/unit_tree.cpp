#include "engine/unit_tree.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "engine/membership.h"
#include "torch_seams/keyed_storage.h"

namespace fsdp::engine {

void UnitTree::detach_parameters() {
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flat_parameters()) {
      for (flat::ShardedParameter& parameter : flat->parameters()) {
        if (flat->attached()) seams::empty_storage(parameter.storage(), parameter.owner);
        parameter.owner->unit = nullptr;
        if (seams::StorageOwnerPtr sentinel = parameter.sentinel_owner.lock()) sentinel->unit = nullptr;
      }
    }
  }
}

std::vector<Unit*> UnitTree::all() const {
  std::vector<Unit*> all;
  for (const auto& unit : units_) all.push_back(unit.get());
  return all;
}

std::vector<Unit*> UnitTree::made_for(const void* module) const {
  std::vector<Unit*> found;
  for (const auto& unit : units_) {
    const auto& modules = unit->names().modules();
    if (std::any_of(modules.begin(), modules.end(), [&](const auto& known) { return known.identity == module; })) {
      found.push_back(unit.get());
    }
  }
  TORCH_CHECK(!found.empty(), "fsdp: ", context_.where(), ": no unit was made for this module itself; units are made ",
              "for modules that fully_shard was called on or that the wrap policy picked (see describe_units)");
  return found;
}

Unit& UnitTree::add(std::unique_ptr<Unit> unit) {
  units_.push_back(std::move(unit));
  return *units_.back();
}

void UnitTree::absorb(UnitTree& inner) {
  for (auto& unit : inner.units_) {
    unit->move_to(context_);
    unit->set_root(false);
    units_.push_back(std::move(unit));
  }
  inner.units_.clear();
  roots_.insert(roots_.end(), inner.roots_.begin(), inner.roots_.end());
  std::move(inner.retired_.begin(), inner.retired_.end(), std::back_inserter(retired_));
  inner.retired_.clear();
}

void UnitTree::retire(const Successors& successors) {
  const auto is_retired = [&](const std::unique_ptr<Unit>& unit) { return successors.count(unit.get()) > 0; };
  const auto first = std::stable_partition(units_.begin(), units_.end(), std::not_fn(is_retired));
  std::move(first, units_.end(), std::back_inserter(retired_));
  units_.erase(first, units_.end());
}

bool UnitTree::unused() const {
  for (const auto& unit : units_) {
    for (const auto& flat : unit->flat_parameters()) {
      for (const flat::ShardedParameter& parameter : flat->parameters()) {
        // The engine's own references: the parameter, and its gradient accumulator's.
        size_t own = parameter.capture_hook ? 2 : 1;
        if (parameter.tensor.use_count() > own) return false;
      }
    }
  }
  return true;
}

void UnitTree::for_each_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit) const {
  for (const auto& unit : units_) {
    base::MutexLock lock(unit->mutex);
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      if (FlatGradient* gradient = unit->gradients().of(i)) visit(*unit, *gradient);
    }
  }
}

void UnitTree::for_each_kept_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit) const {
  for (const auto& unit : units_) {
    base::MutexLock lock(unit->mutex);
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) {
      if (FlatGradient* gradient = unit->gradients().kept(i)) visit(*unit, *gradient);
    }
  }
}

void UnitTree::check_membership() const {
  for (const auto& unit : units_) engine::check_membership(*unit);
}

void UnitTree::order_gathers_after_writes() const {
  context_.streams.order_gathers_after_writes();
  for (const auto& unit : units_) unit->gather_order().note();
}

}  // namespace fsdp::engine
