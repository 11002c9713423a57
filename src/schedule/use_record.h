// The order in which the parameters of one fully_shard call are used, until units are cut from it.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "fsdp/auto_units.h"

namespace fsdp::schedule {

class ScheduledUnit;

// Each member is a unit of one parameter. Threads: guarded by the caller's lock.
class UseRecord {
 public:
  explicit UseRecord(AutoUnits options) : options_(std::move(options)) {}
  const AutoUnits& options() const { return options_; }

  // Adds a member, in module order. `fqns`: all names of its parameter.
  void add(ScheduledUnit* member, std::vector<std::string> fqns);
  const ScheduledUnit* first() const { return members_.front().unit; }
  // Notes that an operator uses this unit, a member or not, after a use of another unit. `together`: the same operator
  // uses both.
  void visit(const ScheduledUnit* unit, bool together);
  // Notes the visits that AutoUnits::order lists.
  void visit_in_given_order();

  // Members that one operator used together, or one member.
  struct Use {
    std::vector<ScheduledUnit*> units;
    bool returns = false;  // used more often than most, with other uses in between
    bool joins = false;    // no unit that is not a member was used since the previous use
  };
  // Returns every member, in the order of first use. Members without a use come last, in module order.
  std::vector<Use> order() const;
  // Returns order() as a text that another rank can read with order_from().
  std::string order_text() const;
  std::vector<Use> order_from(const std::string& text) const;

 private:
  struct Member {
    ScheduledUnit* unit;
    std::vector<std::string> fqns;
    int64_t visits = 0;
    int64_t first_visit = 0;  // number of its first visit, counting the first visits of all members
    int64_t others_before = 0;
    bool together = false;  // used together with the member first used before it
  };
  std::vector<const Member*> in_order() const;
  int64_t usual_visits() const;

  AutoUnits options_;
  std::vector<Member> members_;
  std::unordered_map<const ScheduledUnit*, size_t> indices_;
  const ScheduledUnit* latest_ = nullptr;
  const ScheduledUnit* latest_new_ = nullptr;
  int64_t visits_ = 0;
  int64_t others_ = 0;
};

}  // namespace fsdp::schedule
