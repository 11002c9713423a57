// Text appended to out-of-memory errors: how much memory each part of the engine holds.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace fsdp {

// Returns the table of ShardedModule::memory_summary.
std::string memory_table(int rank, const std::vector<MemoryCategory>& categories);

// Returns a heading, the table for the engine and `more`, and the names of the gathered units. Takes the units' locks.
std::string memory_report(Engine& engine, const std::vector<MemoryCategory>& more = {});
// Whether a message contains a memory report.
bool has_memory_report(const std::string& message);

// Runs `body`, and appends a memory report to an out-of-memory error from it. `doing()` returns the action that needed
// the memory. Must be called without holding locks of units.
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
