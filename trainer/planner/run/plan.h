// A plan: a planned run and its figures, made in a process of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "planner/run/child_answers.h"
#include "planner/target/cluster.h"
#include "planner/target/stack.h"

namespace fsdp::planner {

struct PlanOptions {
  Cluster cluster;
  Stack stack = {};  // which runs the step
  // The rank that is run; none: rank 0, or of a pipeline the one that needs most memory.
  std::optional<int> rank = {};
  std::optional<int64_t> host_memory = {};  // bytes of one host
  int64_t document_tokens = 0;              // tokens of each document, for `attn_mask_type` `block_causal`
  std::string trace = {};                   // where the timeline is written (time_trace.h); empty: nowhere
  // Called in the forked process before each part of the plan, with its name. May be empty.
  std::function<void(const std::string&)> progress = {};
};

// Plans three steps of the run in a forked process, so that this one may make more plans, and returns the figures:
// "model", "cluster", "stack", "rank", "steps", "memory" (memory_document.h) and, if the cluster has times, "time"
// (time_document.h). Of a pipeline, also "pipeline": its schedule, and each of its ranks (stage_document.h). Must be
// called before this process starts threads. Throws a ConfigError as `fsdp train` would, or if the config contradicts
// the cluster, and a std::runtime_error if the plan fails.
nlohmann::ordered_json make_plan(const trainer::Config& config, const PlanOptions& options);

// Returns how many plans to make at a time: `jobs`, or if that is 0 one for each processor, but at most 16.
size_t plans_at_once(int jobs);

// Makes the plans of several configs, at most `at_once` at a time, and returns the answers in their order: an error of
// one config is no error of the others. Calls `answered` after each of them.
std::vector<Answer> plan_all(const std::vector<trainer::Config>& configs, const PlanOptions& options, size_t at_once,
                             const std::function<void()>& answered = {});

// A run on a cluster of its own.
struct PlanRequest {
  trainer::Config config;
  PlanOptions options;
};

// Likewise.
std::vector<Answer> plan_all(const std::vector<PlanRequest>& requests, size_t at_once,
                             const std::function<void()>& answered = {});

}  // namespace fsdp::planner
