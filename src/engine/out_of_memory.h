// What an error that memory is wanting is to say: who holds what.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace fsdp {

// The table of ShardedModule::memory_summary.
std::string memory_table(int rank, const std::vector<MemoryCategory>& categories);

// The same below a heading, and which units are gathered. Takes the units' locks.
std::string memory_report(Engine& engine, const std::vector<MemoryCategory>& more = {});
// Whether a message has such a report.
bool has_memory_report(const std::string& message);

// Runs `body`. An error in it that memory is wanting gets a report; `doing()` says for what it was wanted. Call it
// without locks of units.
template <typename Doing, typename Body>
auto explaining_out_of_memory(Engine& engine, const Doing& doing, const Body& body) {
  try {
    return body();
  } catch (c10::Error& error) {
    engine.explain_out_of_memory(error, doing());
    throw;
  }
}

}  // namespace fsdp
