#include "fsdp/diagnostics.h"

#include <c10/util/StringUtil.h>

#include "base/error_message.h"
#include "base/out_of_memory.h"
#include "engine/engine.h"

namespace fsdp {

EngineStats Diagnostics::stats() const { return engine_->current().stats(); }

std::vector<MemoryCategory> Diagnostics::memory() const { return engine_->current().memory().categories(); }

std::string Diagnostics::memory_summary(const std::vector<MemoryCategory>& more) const {
  std::vector<MemoryCategory> categories = memory();
  categories.insert(categories.end(), more.begin(), more.end());
  return engine::memory_table(engine_->current().mesh().world_rank(), categories);
}

std::string Diagnostics::explain_out_of_memory(const std::exception& error,
                                               const std::vector<MemoryCategory>& more) const {
  std::string text = base::message_of(error);
  if (!base::is_out_of_memory(error)) return text;
  if (!engine::has_memory_report(text)) return c10::str(text, "\n", engine_->current().memory().report(more));
  return more.empty() ? text : c10::str(text, "\n", memory_summary(more));
}

std::string Diagnostics::collective_log() const { return engine_->current().collective_log(); }

void Diagnostics::verify_sharding() { engine_->current().preparation().repeat(); }

}  // namespace fsdp
