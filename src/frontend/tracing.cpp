#include "fsdp/tracing.h"

#include <utility>

#include "engine/engine.h"

namespace fsdp {

void Tracing::start(std::function<std::vector<MemoryCategory>()> more) {
  engine::Engine& engine = engine_->current();
  engine.trace().start([&memory = engine.memory(), more = std::move(more)] {
    return memory.now(more ? more() : std::vector<MemoryCategory>());
  });
}

Trace Tracing::stop() { return engine_->current().trace().stop(); }

Tracing::Range::Range(const std::shared_ptr<engine::Engine>& engine, std::string name)
    : engine_(engine->current().shared_from_this()), name_(std::move(name)), begin_(engine_->trace().now()) {
  engine_->trace().sample_memory();
}

Tracing::Range::~Range() {
  engine_->trace().record(TraceTrack::kStep, name_, Pass::kUser, begin_);
  engine_->trace().sample_memory();
}

}  // namespace fsdp
