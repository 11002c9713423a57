// ShardedModule::memory_summary, and its use in out-of-memory errors.
#include <c10/util/StringUtil.h>

#include "base/error_message.h"
#include "base/out_of_memory.h"
#include "engine/engine.h"
#include "fsdp/fully_shard.h"

namespace fsdp {

std::vector<MemoryCategory> ShardedModule::memory() const { return engine().memory().categories(); }

std::string ShardedModule::memory_summary(const std::vector<MemoryCategory>& more) const {
  std::vector<MemoryCategory> categories = memory();
  categories.insert(categories.end(), more.begin(), more.end());
  return memory_table(engine().mesh().rank(), categories);
}

std::string ShardedModule::explain_out_of_memory(const std::exception& error,
                                                 const std::vector<MemoryCategory>& more) const {
  const std::string text = message_of(error);
  if (!is_out_of_memory(error)) {
    return text;
  }
  if (!has_memory_report(text)) {
    return c10::str(text, "\n", engine().memory().report(more));
  }
  return more.empty() ? text : c10::str(text, "\n", memory_summary(more));
}

}  // namespace fsdp
