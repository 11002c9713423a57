// Units for tests of decisions. Each is named by a letter and has a module "a", "b", … of its own, unless another FQN
// is given.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "schedule/scheduled_unit.h"

namespace fsdp::schedule::testing {

class MadeUpUnit : public ScheduledUnit {
 public:
  MadeUpUnit(char letter, std::string module) : ScheduledUnit({std::move(module)}, false), letter(letter) {}
  using ScheduledUnit::set_stays_after_backward;
  using ScheduledUnit::set_stays_gathered;
  const char letter;
};

class MadeUpUnits {
 public:
  MadeUpUnit& operator[](char letter) { return add(letter, std::string(1, letter)); }
  // Returns the unit of a letter. The first call for a letter makes the unit, with a module that has this FQN.
  MadeUpUnit& add(char letter, const std::string& module) {
    std::unique_ptr<MadeUpUnit>& unit = units_[letter];
    if (!unit) unit = std::make_unique<MadeUpUnit>(letter, module);
    return *unit;
  }

 private:
  std::map<char, std::unique_ptr<MadeUpUnit>> units_;
};

inline std::string text(const std::vector<ScheduledUnit*>& units) {
  std::string text;
  for (const ScheduledUnit* unit : units) text += static_cast<const MadeUpUnit*>(unit)->letter;
  return text;
}

}  // namespace fsdp::schedule::testing
