// Options of one fully_shard call: checked, and as the engine wants them.
#pragma once

#include <string>

#include "engine/engine.h"
#include "frontend/survey.h"
#include "fsdp/options.h"

namespace fsdp {

// These throw what is wrong; `name` names the unit.
void check_unit_options(const Options& options, const std::string& name);
void check_auto_units(const Options& options, const std::string& name);
void check_reshard_group(const Options& options, const ProcessMesh& mesh, const std::string& name);
// Where inner calls have sharded all parameters, options of units apply to nothing: they are to be the defaults, or
// those of an inner unit.
void check_options_apply(const Options& options, const Survey& surveyed, const std::string& name);
// Options that must be the same over the tree.
void check_agrees(const EngineOptions& outer, const Engine& inner);

UnitOptions unit_options(const Options& options);
OverlapOptions overlap_options(const Options& options);

}  // namespace fsdp
