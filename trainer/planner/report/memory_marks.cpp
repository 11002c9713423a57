#include "planner/report/memory_marks.h"

#include <array>
#include <set>
#include <string>

#include "planner/memory/memory_use.h"

namespace fsdp::planner {
namespace {

// Memory of the engine and of the optimizer, which a plan runs as they are. planned_run_test.cpp compares them.
bool kind_is_exact(const std::string& kind) {
  static const std::set<std::string> exact = {to_string(MemoryKind::kShards), to_string(MemoryKind::kGradientShards),
                                              to_string(MemoryKind::kUnshardedParameters),
                                              to_string(MemoryKind::kGradientBuffers),
                                              to_string(MemoryKind::kOptimizerState)};
  return exact.count(kind) > 0;
}

// The error of a whole, where it is the sum of exact and modelled parts, is no more than the modelled parts.
nlohmann::ordered_json marks_of_place(const nlohmann::ordered_json& place) {
  nlohmann::ordered_json marks;
  int64_t exact = 0;
  for (const auto& [kind, bytes] : place.at("peak").at("by_kind").items()) {
    marks["by_kind"][kind] = kind_is_exact(kind) ? "exact" : "modelled";
    if (kind_is_exact(kind)) exact += bytes.get<int64_t>();
  }
  constexpr std::array kFigures = {"total",   "reserved",      "allocated", "requested",
                                   "context", "communicators", "pageable",  "allocator_retries",
                                   "pinned",  "process",       "per_host"};
  for (const char* figure : kFigures) {
    if (place.contains(figure)) marks[figure] = {{"mark", "modelled"}};
  }
  for (const char* figure : {"requested", "pageable"}) {
    if (place.contains(figure)) marks[figure]["at_least"] = exact;
  }
  return marks;
}

}  // namespace

void add_memory_marks(nlohmann::ordered_json& memory) {
  for (const char* place : {"device", "host"}) {
    if (memory.contains(place)) memory[place]["marks"] = marks_of_place(memory[place]);
  }
}

}  // namespace fsdp::planner
