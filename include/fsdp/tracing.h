// Recording of a sharded module's trace.
//
//   sharded->tracing().start();
//   … some steps …
//   write_trace("trace.json", *communicator, sharded->tracing().stop());   // opens in ui.perfetto.dev
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/diagnostics.h"
#include "fsdp/trace.h"

namespace fsdp {

// The recorder: ShardedModule::tracing().
class Tracing {
 public:
  explicit Tracing(std::shared_ptr<engine::Engine> engine) : engine_(std::move(engine)) {}

  // Starts to record a timeline and the memory in use; see trace.h. `more` returns memory that the caller holds in
  // addition, such as the optimizer's state. It is called in the threads that use the model until the trace is stopped,
  // and must not use parameters. stop() ends the trace and returns what this rank recorded.
  void start(std::function<std::vector<MemoryCategory>()> more = {});
  Trace stop();
  // Records a named range of the user ("forward", "optimizer") until the returned scope ends. Does nothing while no
  // trace is recorded.
  class Range {
   public:
    Range(const std::shared_ptr<engine::Engine>& engine, std::string name);
    ~Range();
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

   private:
    std::shared_ptr<engine::Engine> engine_;
    std::string name_;
    int64_t begin_;
  };
  [[nodiscard]] Range range(std::string name) const { return {engine_, std::move(name)}; }

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace fsdp
