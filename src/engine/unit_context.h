// The part of an engine that its units see.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "engine/engine_options.h"
#include "engine/engine_streams.h"

namespace fsdp::engine {

class Engine;

// Owned by an engine. A unit changes to another context when the engine of an outer module takes it over.
struct UnitContext {
  UnitContext(Engine& engine_, const EngineOptions& options_)
      : engine(engine_),
        options(options_),
        streams(device(),
                options.overlap.high_priority_streams ? base::StreamPriority::kHigh : base::StreamPriority::kNormal) {}

  c10::Device device() const { return options.memory.compute_device(); }
  std::string where() const { return options.mesh.where(); }  // this rank, for messages

  Engine& engine;  // gets uses and gradients of the units' parameters
  const EngineOptions options;
  const EngineStreams streams;
  // See ShardedModule::set_full_precision. Changed only between passes.
  bool full_precision = false;
};

}  // namespace fsdp::engine
