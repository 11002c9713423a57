#include "engine/unit_switches.h"

#include "engine/engine.h"

namespace fsdp::engine {

void set_reshard_after_forward(Engine& engine, const std::vector<Unit*>& units, const ReshardAfterForward& reshard) {
  for (Unit* unit : units) {
    unit->set_reshard_after_forward(reshard);
    engine.gatherer().note_changed(*unit);
  }
  engine.preparation().invalidate();
}

void set_reshard_after_backward(Engine& engine, const std::vector<Unit*>& units, bool on) {
  for (Unit* unit : units) {
    unit->set_stays_after_backward(!on);
    engine.gatherer().note_changed(*unit);
  }
  engine.preparation().invalidate();
}

void set_unshard_in_backward(Engine& engine, const std::vector<Unit*>& units, bool on) {
  for (Unit* unit : units) unit->switches().unshard_in_backward = on;
  engine.preparation().invalidate();
}

}  // namespace fsdp::engine
