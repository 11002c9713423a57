// The units of one engine, and what it knows of the modules that they were made for.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/unit.h"

namespace fsdp::engine {

// Units that were replaced, by the unit that has their parameters now.
using Successors = std::unordered_map<const schedule::ScheduledUnit*, Unit*>;
// Returns the unit that has the parameters of a unit now: its successor, or the unit itself.
using Successor = std::function<schedule::ScheduledUnit*(schedule::ScheduledUnit*)>;

// Changes only while none of the units is in use.
class UnitTree {
 public:
  explicit UnitTree(UnitContext& context) : context_(context) {}
  UnitTree(const UnitTree&) = delete;
  UnitTree& operator=(const UnitTree&) = delete;

  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  std::vector<Unit*> all() const;
  // Returns the units made for this module itself. Throws if there are none.
  std::vector<Unit*> made_for(const void* module) const;

  Unit& add(std::unique_ptr<Unit> unit);
  // Must be called before the engine is destroyed, which parameters may outlive: from now on, a touch of one throws an
  // error that says so.
  void detach_parameters();
  // Takes over everything of the tree of modules below these.
  void absorb(UnitTree& inner);
  // Takes these units out. They stay as long as the tree, because handles may refer to them.
  void retire(const Successors& successors);

  // The modules (identities) that fully_shard was called on, including the modules of absorbed trees.
  void add_root(const void* module) { roots_.push_back(module); }
  const std::vector<const void*>& roots() const { return roots_; }
  // Parameters below these modules that are not sharded (Options::ignored_parameters, ignored_modules).
  void ignore(std::vector<at::Tensor> parameters) { ignored_ = std::move(parameters); }
  const std::vector<at::Tensor>& ignored() const { return ignored_; }
  // Whether nothing else holds the units' parameters.
  bool unused() const;

  // Calls `visit` for each FlatParameter that gets gradients, under its unit's lock.
  void for_each_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit) const;
  // Does the same, and also for those that were frozen later.
  void for_each_kept_gradient(const std::function<void(const Unit&, FlatGradient&)>& visit) const;
  void check_membership() const;
  // Orders all gathers that are issued from now on after the writes to shards so far.
  void order_gathers_after_writes() const;

 private:
  UnitContext& context_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Unit>> retired_;  // without parameters
  std::vector<at::Tensor> ignored_;
  std::vector<const void*> roots_;
};

}  // namespace fsdp::engine
