#include "planner/paper/paper_runs.h"

#include <c10/util/Exception.h>

#include "models/presets.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;

// FSDP has one process group for gathers and reductions (section 3.3.2). The text names no clipping.
json common_keys(const std::string& model) {
  return {{"model", model}, {"clip_grad_norm", 0}, {"one_communicator", true}};
}

json language_keys(const std::string& model, int64_t tokens, int64_t batch) {
  json keys = common_keys(model);
  keys.update({{"max_seq_length", tokens}, {"train_batch_size", batch}, {"activation_checkpointing", true}});
  return keys;
}

int hosts_of(int64_t gpus) { return static_cast<int>(gpus / kPaperRanksPerHost); }

const models::PublishedRuns& published(const std::string& preset) { return *models::find_preset(preset).runs; }

}  // namespace

Cluster paper_cluster(int hosts) {
  Cluster cluster = parse_cluster("8xa100-80");
  cluster.hosts = hosts;
  cluster.links.nics = kPaperRanksPerHost;
  cluster.links.nic = 2e12 / 8 / kPaperRanksPerHost;
  return cluster;
}

const std::vector<std::string>& scaled_models() {
  static const std::vector<std::string> models = {"t5-611m", "t5-2b", "t5-11b"};
  return models;
}

PaperRun scale_run(const std::string& model, const std::string& strategy, const std::string& dtype) {
  json keys = language_keys(model, 512, 8);
  keys.update({{"sharding_strategy", strategy}, {"dtype", dtype}});
  return {.hosts = 1, .keys = keys};
}

const std::vector<int64_t>& gpt_gpus() { return published("mingpt-175b").gpus; }

const std::vector<int64_t>& gpt_batches() { return published("mingpt-175b").batch_sizes; }

PaperRun gpt_run(int64_t gpus, int64_t batch, bool prefetches) {
  json keys = language_keys("mingpt-175b", published("mingpt-175b").sequence_length, batch);
  keys["backward_prefetch"] = prefetches ? "backward_pre" : "none";
  return {.hosts = hosts_of(gpus), .keys = keys};
}

const std::vector<LimitedModel>& limited_models() {
  static const std::vector<LimitedModel> models = {
      {.title = "RegNet-9B, 2 hosts, batch 48", .model = "regnet-9b", .hosts = 2, .batch = 48},
      {.title = "RegNet-9B, 4 hosts, batch 72", .model = "regnet-9b", .hosts = 4, .batch = 72},
      {.title = "DeepViT-8B, 2 hosts, batch 105", .model = "deepvit-8b", .hosts = 2, .batch = 105},
      {.title = "DeepViT-8B, 4 hosts, batch 120", .model = "deepvit-8b", .hosts = 4, .batch = 120},
      {.title = "T5-11B, 2 hosts, batch 2", .model = "t5-11b", .hosts = 2, .batch = 2},
  };
  return models;
}

PaperRun limiter_run(const LimitedModel& model, bool is_limited) {
  json keys = common_keys(model.model);
  keys.update({{"train_batch_size", model.batch}, {"limit_all_gathers", is_limited}});
  if (model.model == "t5-11b") {
    keys["max_seq_length"] = published("t5-11b").sequence_length;
  } else {
    keys["activation_checkpointing"] = true;
  }
  return {.hosts = model.hosts, .keys = keys};
}

const std::vector<int64_t>& t5_gpus() { return published("t5-11b").gpus; }

const std::vector<int64_t>& t5_batches() { return published("t5-11b").batch_sizes; }

PaperRun t5_run(int64_t gpus, int64_t batch) {
  return {.hosts = hosts_of(gpus), .keys = language_keys("t5-11b", published("t5-11b").sequence_length, batch)};
}

PaperRun dhen_run() {
  json keys = common_keys("dhen-550m");
  keys["train_batch_size"] = published("dhen-550m").batch_sizes.front();
  return {.hosts = 1, .keys = keys};
}

const std::vector<std::string>& volume_strategies() {
  static const std::vector<std::string> strategies = {"no_shard", "shard_grad_op", "full_shard", "hybrid_shard",
                                                      "hybrid_shard_zero2"};
  return strategies;
}

PaperRun volume_run(const std::string& strategy, int hosts) {
  json keys = language_keys("t5-2b", 512, 1);
  keys["sharding_strategy"] = strategy;
  return {.hosts = hosts, .keys = keys};
}

const std::vector<int>& volume_hosts() {
  static const std::vector<int> hosts = {2, 64};
  return hosts;
}

std::vector<PaperRun> paper_runs() {
  std::vector<PaperRun> runs;
  for (const std::string& model : scaled_models()) {
    for (const char* strategy : {"full_shard", "no_shard"}) runs.push_back(scale_run(model, strategy, "fp32"));
    runs.push_back(scale_run(model, "full_shard", "bf16"));
  }
  for (const int64_t gpus : gpt_gpus()) {
    for (const int64_t batch : gpt_batches()) {
      for (const bool prefetches : {true, false}) runs.push_back(gpt_run(gpus, batch, prefetches));
    }
  }
  for (const LimitedModel& model : limited_models()) {
    for (const bool is_limited : {true, false}) runs.push_back(limiter_run(model, is_limited));
  }
  for (const int64_t gpus : t5_gpus()) {
    for (const int64_t batch : t5_batches()) runs.push_back(t5_run(gpus, batch));
  }
  runs.push_back(dhen_run());
  for (const int hosts : volume_hosts()) {
    for (const std::string& strategy : volume_strategies()) runs.push_back(volume_run(strategy, hosts));
  }
  return runs;
}

}  // namespace fsdp::planner
