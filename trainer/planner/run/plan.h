// A plan: a planned run and its figures, made in a process of its own.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "config/config.h"
#include "planner/target/cluster.h"

namespace fsdp::planner {

struct PlanOptions {
  Cluster cluster;
  int rank = 0;                        // the rank that is run
  std::optional<int64_t> host_memory;  // bytes of one host
  std::string trace;                   // where the timeline is written (time_trace.h); empty: nowhere
};

// Plans three steps of the run in a forked process, so that this one may make more plans, and returns the figures:
// "model", "cluster", "rank", "steps", "memory" (memory_document.h) and, for devices, "time" (time_document.h). Must be
// called before this process starts threads. Throws a ConfigError as `fsdp train` would, or if the config contradicts
// the cluster, and a std::runtime_error if the plan fails.
nlohmann::ordered_json make_plan(const trainer::Config& config, const PlanOptions& options);

}  // namespace fsdp::planner
