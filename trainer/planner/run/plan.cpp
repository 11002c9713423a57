#include "planner/run/plan.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "config/config_checks.h"
#include "config/config_names.h"
#include "config/errors.h"
#include "launch/rank_processes.h"
#include "planner/memory/forecast.h"
#include "planner/pricing/time_forecast.h"
#include "planner/ranks/replay_of_peers.h"
#include "planner/report/memory_document.h"
#include "planner/report/memory_marks.h"
#include "planner/report/stage_document.h"
#include "planner/report/time_document.h"
#include "planner/report/time_trace.h"
#include "planner/report/units_document.h"
#include "planner/run/pipeline_plan.h"
#include "planner/run/planned_run.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::Config;
using trainer::ConfigError;
using trainer::DeviceChoice;

// The first two steps differ from later ones: the optimizer makes its state, and the order of units becomes known.
constexpr int kSteps = 3;

// A stack changes times alone, and only those of work that the plan has.
void check_stack(const Config& config, const PlanOptions& options) {
  const Stack& stack = options.stack;
  if (stack.is_ours()) return;
  const std::string name = "--stack " + stack.name;
  if (!options.cluster.device) {
    throw ConfigError(name +
                      ": a stack changes the times of kernels on GPUs and of their hosts; name a cluster with GPUs");
  }
  if (stack.uses_float8() && config.precision.dtype != at::kBFloat16) {
    throw ConfigError(name + " uses fp8 in place of bf16: add --set dtype=bf16");
  }
  if (stack.uses_float8() && config.parallelism.tensor_degree > 1) {
    throw ConfigError(c10::str(name, " uses fp8, which is planned for whole weights only, but key ",
                               "\"tensor_parallel_degree\" is ", config.parallelism.tensor_degree, "; accepted: 1"));
  }
  if (stack.float8_products && options.cluster.speed.float8 == 0) {
    throw ConfigError(c10::str(name, " has products in fp8, which ", options.cluster.device->title, " has not"));
  }
  if (stack.optimizer_traffic != 1 && config.optimizer.name != "adamw") {
    throw ConfigError(c10::str(name, " says how much memory Adam moves, but key \"optimizer\" is \"",
                               config.optimizer.name, "\": add --set optimizer=adamw"));
  }
}

// Other types take other times.
void check_measured_types(const Config& config, const Cluster& cluster) {
  if (!cluster.host_speed || cluster.host_speed->knows(config.precision.dtype)) return;
  throw ConfigError(c10::str("key \"dtype\" is \"", trainer::config_name(config.precision.dtype), "\", for which ",
                             cluster.file, " has no times; a plan for --cluster ", cluster.ranks(),
                             "xcpu has memory alone"));
}

void check_against_cluster(const Config& config, const PlanOptions& options) {
  const DeviceChoice device = config.communication.device;
  if (device == DeviceChoice::kCuda && !options.cluster.device) {
    throw ConfigError(
        "key \"device\" is \"cuda\", but --cluster has CPUs: add --set device=auto, or name a cluster "
        "with GPUs");
  }
  if (device == DeviceChoice::kCpu && options.cluster.device) {
    throw ConfigError(c10::str("key \"device\" is \"cpu\", but --cluster has ", options.cluster.device->title,
                               ": add --set device=auto, or name a cluster such as ", options.cluster.ranks(), "xcpu"));
  }
  if (options.rank.value_or(0) < 0 || options.rank.value_or(0) >= options.cluster.ranks()) {
    throw ConfigError(c10::str("--rank ", *options.rank, ": the cluster has ranks 0 to ", options.cluster.ranks() - 1));
  }
  if (!options.trace.empty() && !options.cluster.has_times()) {
    throw ConfigError(
        c10::str("--trace: the cluster has no times of these CPUs; `fsdp plan --calibrate FILE --nproc-per-node ",
                 options.cluster.ranks_per_host, "` measures them, for --cluster FILE"));
  }
  check_measured_types(config, options.cluster);
  const bool by_document = config.model.attention_mask == trainer::AttentionMask::kBlockCausal;
  if (by_document && options.document_tokens == 0) {
    throw ConfigError(
        "key \"attn_mask_type\" is \"block_causal\", but `fsdp plan` has no tokens to find documents in: add "
        "--document-tokens N, the length of a usual one");
  }
  if (!by_document && options.document_tokens > 0) {
    throw ConfigError(c10::str("--document-tokens ", options.document_tokens,
                               " is for \"attn_mask_type\" \"block_causal\", but the key is \"causal\""));
  }
  check_stack(config, options);
  trainer::check_for_world_size(config, options.cluster.ranks());
}

ordered_json cluster_document(const Cluster& cluster) {
  ordered_json document = {
      {"text", cluster.text()}, {"hosts", cluster.hosts}, {"ranks_per_host", cluster.ranks_per_host}};
  document["device"] = cluster.device ? ordered_json(cluster.device->name) : ordered_json("cpu");
  if (!cluster.file.empty()) document["file"] = cluster.file;
  for (const auto& [path, provenance] : cluster.provenances) document["provenance"][path] = to_string(provenance);
  return document;
}

// The engine's categories and the optimizer's, as a run measures them.
ordered_json engine_document(const PlannedRun& run) {
  ordered_json document = ordered_json::array();
  for (const MemoryCategory& category : run.memory().back().categories) {
    document.push_back({{"name", category.name}, {"peak", category.peak}});
  }
  return document;
}

// The planned rank, among others.
struct PlannedPlace {
  int rank = 0;
  PlannedPeers* peers = nullptr;  // null: without a pipeline
  bool writes_trace = false;

  bool shows_progress() const { return peers == nullptr || peers->index() == 0; }
  std::function<ReplayResult(const Replay&)> replay() const {
    if (peers == nullptr) return run_replay;
    return [this](const Replay& own) { return replay_with(*peers, own); };
  }
};

StepWork step_work(const PlannedRun& run, const Config& config) {
  return {.samples = config.data.train_batch_size * config.steps.gradient_accumulation_steps,
          .data_ranks = run.data_ranks(),
          .sample = run.sample_work(),
          .dtype = config.precision.dtype,
          .recomputes = config.model.activation_checkpointing};
}

// Also writes the timeline, if one is wanted.
ordered_json plan_time(PlannedRun& run, const Config& config, const PlanOptions& options, const PlannedPlace& place,
                       const MemoryForecast& memory) {
  const std::vector<AllocatorRetry> retries =
      memory.device ? memory.device->replay.retried : std::vector<AllocatorRetry>();
  const TimeForecast time = forecast_time(run.tape(), run.step_bounds(), options.cluster, retries,
                                          {.stack = options.stack,
                                           .dtype = config.precision.dtype,
                                           .vocabulary = run.vocabulary(),
                                           .splits_weights = config.parallelism.tensor_degree > 1},
                                          place.replay());
  if (place.writes_trace) {
    const MemoryUse& use = memory.device ? memory.device->use : memory.host.use;
    write_time_trace(options.trace, place.rank, time_trace(run.tape(), time, use, run.stop_trace()));
  }
  return time_document(time, step_work(run, config), options.cluster);
}

ordered_json units_of(const PlannedRun& run) {
  ordered_json units = ordered_json::array();
  for (const trainer::ShardedPart& part : run.parts()) {
    for (ordered_json& unit : units_document(part.sharded->diagnostics().describe_units())) {
      units.push_back(std::move(unit));
    }
  }
  return units;
}

PlanTarget target_of(const PlanOptions& options, const PlannedPlace& place) {
  const Cluster& cluster = options.cluster;
  return {
      .has_device = cluster.device.has_value(),
      .layout = {.world = cluster.ranks(), .per_host = cluster.ranks_per_host, .peers = place.peers},
      .rank = place.rank,
      .threads = cluster.host_speed ? cluster.host_speed->threads : trainer::threads_of_rank(cluster.ranks_per_host),
      .matmul_workspace = cluster.device ? cluster.device->matmul_workspace : 0,
      .notes_accesses = options.stack.fusion != Fusion::kNone,
      .document_tokens = options.document_tokens};
}

ordered_json plan_rank(const Config& config, const PlanOptions& options, const PlannedPlace& place) {
  const Cluster& cluster = options.cluster;
  const auto begin = [&](const std::string& part) {
    if (options.progress && place.shows_progress()) options.progress(part);
  };
  begin("making the model");
  PlannedRun run(config, target_of(options, place));
  if (place.writes_trace) run.trace();
  for (int step = 1; step <= kSteps; ++step) {
    begin(c10::str("step ", step, " of ", kSteps));
    run.step();
  }
  begin("adding up");
  const MemoryForecast memory = forecast_memory(run.tape(), run.step_bounds(), cluster, options.host_memory);
  ordered_json document = {
      {"model", {{"type", run.model_type()}, {"parameters", run.parameters()}, {"units", run.units()}}},
      {"cluster", cluster_document(cluster)},
      {"stack", options.stack.name},
      {"rank", place.rank},
      {"steps", kSteps},
      {"units", units_of(run)},
      {"engine", engine_document(run)},
      {"memory", memory_document(memory, run.tape())}};
  add_memory_marks(document["memory"]);
  if (cluster.has_times()) document["time"] = plan_time(run, config, options, place, memory);
  if (run.pipeline() != nullptr) document["stage"] = stage_document(*run.pipeline(), run.parts(), document);
  return document;
}

ordered_json plan_here(const Config& config, const PlanOptions& options);

// Only a plan tells which rank of a pipeline needs most memory.
PlanOptions with_rank_to_trace(const Config& config, PlanOptions options) {
  const std::string trace = std::exchange(options.trace, {});
  options.rank = plan_here(config, options).at("rank").get<int>();
  options.trace = trace;
  return options;
}

ordered_json plan_here(const Config& config, const PlanOptions& options) {
  const auto degree = static_cast<int>(config.parallelism.pipeline_degree);
  const bool traces = !options.trace.empty();
  if (degree == 1) return plan_rank(config, options, {.rank = options.rank.value_or(0), .writes_trace = traces});
  if (!options.rank && traces) return plan_here(config, with_rank_to_trace(config, options));
  const PipelineRanks ranks{.stages = degree, .of_stage = options.cluster.ranks() / degree, .chosen = options.rank};
  ordered_json document = plan_pipeline(ranks, [&](int rank, PlannedPeers& peers) {
    return plan_rank(config, options, {.rank = rank, .peers = &peers, .writes_trace = traces && rank == options.rank});
  });
  document["pipeline"] = {{"schedule", config.parallelism.pipeline_schedule},
                          {"micro_batches", config.steps.gradient_accumulation_steps},
                          {"ranks", std::move(document["pipeline"])}};
  return document;
}

}  // namespace

ordered_json make_plan(const Config& config, const PlanOptions& options) {
  Answer answer = plan_all({config}, options, 1).front();
  if (!answer.refusal.empty()) throw ConfigError(answer.refusal);
  if (!answer.failure.empty()) throw std::runtime_error(answer.failure);
  return std::move(answer.result);
}

size_t plans_at_once(int jobs) {
  constexpr unsigned kMost = 16;
  return jobs > 0 ? static_cast<size_t>(jobs) : std::clamp(std::thread::hardware_concurrency(), 1U, kMost);
}

std::vector<Answer> plan_all(const std::vector<trainer::Config>& configs, const PlanOptions& options, size_t at_once,
                             const std::function<void()>& answered) {
  std::vector<PlanRequest> requests;
  requests.reserve(configs.size());
  for (const trainer::Config& config : configs) requests.push_back({config, options});
  return plan_all(requests, at_once, answered);
}

std::vector<Answer> plan_all(const std::vector<PlanRequest>& requests, size_t at_once,
                             const std::function<void()>& answered) {
  const auto plan = [&](size_t index) {
    check_against_cluster(requests[index].config, requests[index].options);
    return plan_here(requests[index].config, requests[index].options);
  };
  // Each plan of a pipeline has a process for each of its ranks.
  int64_t processes = 1;
  for (const PlanRequest& request : requests) {
    processes = std::max(processes, request.config.parallelism.pipeline_degree);
  }
  const size_t plans = std::max<size_t>(1, at_once / static_cast<size_t>(processes));
  return answers_of_children(requests.size(), plans, plan, [&](size_t, const Answer&) {
    if (answered) answered();
  });
}

}  // namespace fsdp::planner
