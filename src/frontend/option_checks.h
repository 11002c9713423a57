// Checks the options of one fully_shard call and converts them for the engine.
#pragma once

#include <string>

#include "engine/engine.h"
#include "frontend/survey.h"
#include "fsdp/options.h"

namespace fsdp::frontend {

// These functions throw an error if an option is wrong; `name` names the unit.
void check_unit_options(const Options& options, const std::string& name);
void check_auto_units(const Options& options, const std::string& name);
void check_reshard_group(const Options& options, const ProcessMesh& mesh, const std::string& name);
// If inner calls have sharded all parameters, the options of units would have no effect: they must be the defaults, or
// the options of an inner unit.
void check_options_apply(const Options& options, const Survey& surveyed, const std::string& name);
// Checks the options that must be the same in the whole tree.
void check_agrees(const engine::EngineOptions& outer, const engine::Engine& inner);

engine::UnitOptions unit_options(const Options& options);
engine::OverlapOptions overlap_options(const Options& options);

}  // namespace fsdp::frontend
