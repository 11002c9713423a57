// The names of a unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp::engine {

// A module that a unit was made for: its FQN ("" for the module that fully_shard was called on) and its identity.
struct AnnotatedModule {
  std::string fqn;
  const void* identity;
};

// The origin of a unit: a module, several siblings, or parameters below a module grouped by their order
// (Options::auto_units).
struct UnitOrigin {
  std::vector<AnnotatedModule> modules;
  bool automatic = false;

  std::vector<std::string> fqns() const;
};

// The name of a unit, after its origin, and those of its FlatParameters and collectives.
class UnitNames {
 public:
  explicit UnitNames(UnitOrigin origin);

  const std::vector<AnnotatedModule>& modules() const { return origin_.modules; }
  const std::string& unit() const { return unit_; }
  // "<name>.flat_param", "<name>.flat_param_2", …
  std::string flat_parameter(size_t index) const;
  // Returns the identity of the unit's next collective in a pass. `model`: the number of the model in this process.
  CollectiveId next_collective(Pass pass, int64_t model);
  // Gives the modules the names that they have below a new root. `fqns`: in the order of modules().
  void rename_modules(const std::vector<std::string>& fqns);
  // Names the unit after its modules or, if it was made of parameters grouped by their order, which have no module to
  // be named after, after the first and last parameter.
  void name_unit(const std::string& first_parameter, const std::string& last_parameter);

 private:
  UnitOrigin origin_;
  std::string unit_;
  uint64_t generations_[5] = {};  // of collectives, by pass
};

}  // namespace fsdp::engine
