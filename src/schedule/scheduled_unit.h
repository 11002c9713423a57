// A unit as decisions see it: its place in the tree of modules, and why it is gathered. Contains no tensors.
#pragma once

#include <atomic>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::schedule {

// Facts are set before the unit's first use and change only between passes. Threads: as each part says.
class ScheduledUnit {
 public:
  // `modules`: the FQNs of the modules that it was made for; several modules are siblings. `automatic`: whether it was
  // made of parameters below that module, by the order of their use (Options::auto_units).
  ScheduledUnit(std::vector<std::string> modules, bool automatic)
      : modules_(std::move(modules)), automatic_(automatic) {}
  ScheduledUnit(const ScheduledUnit&) = delete;
  ScheduledUnit& operator=(const ScheduledUnit&) = delete;

  // -- facts --
  const std::vector<std::string>& module_fqns() const { return modules_; }
  bool automatic() const { return automatic_; }
  // Whether it stays gathered after forward on purpose: the root, and units whose options say so.
  bool stays_gathered() const { return stays_gathered_; }
  // Whether it stays gathered after backward on purpose, until its next use.
  bool stays_after_backward() const { return stays_after_backward_; }
  // Whether its memory is apart from that which other units take in turn.
  bool has_own_memory() const { return stays_gathered_ || stays_after_backward_; }
  // Whether the modules of `other` run inside a module of this unit.
  bool is_ancestor_of(const ScheduledUnit& other) const;
  bool is_related_to(const ScheduledUnit& other) const { return is_ancestor_of(other) || other.is_ancestor_of(*this); }

  // -- why it is gathered; safe from any thread --
  // Whether the user asked for it, and nothing has used it since. Uses of other units then do not release it.
  bool awaits_use() const { return awaits_use_; }
  // Whether it was gathered because it is expected to be used soon, and nothing has used it since.
  bool prefetched() const { return prefetched_; }
  void note_requested() { awaits_use_ = true; }
  void note_prefetched() { prefetched_ = true; }
  void note_used() {
    awaits_use_ = false;
    prefetched_ = false;
  }
  // Notes that it is being released. Returns whether it was gathered ahead in vain.
  bool note_released() {
    awaits_use_ = false;
    return prefetched_.exchange(false);
  }

 protected:
  ~ScheduledUnit() = default;
  void set_module_fqns(std::vector<std::string> fqns) { modules_ = std::move(fqns); }
  void set_stays_gathered(bool on) { stays_gathered_ = on; }
  void set_stays_after_backward(bool on) { stays_after_backward_ = on; }

 private:
  friend class Residency;
  using Units = std::list<ScheduledUnit*>;

  std::vector<std::string> modules_;
  bool automatic_;
  bool stays_gathered_ = false;
  bool stays_after_backward_ = false;
  std::atomic<bool> awaits_use_{false};
  std::atomic<bool> prefetched_{false};
  // The list of Residency that contains the unit while it is gathered (otherwise null), its place there, and its place
  // among the candidates for release. Guarded by Residency's mutex.
  Units* list_ = nullptr;
  Units::iterator place_;
  std::optional<Units::iterator> candidate_;
};

}  // namespace fsdp::schedule
