// The runs behind the figures of the FSDP paper: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data
// Parallel, 2023. Settings are those that its text states; those that it leaves open are this project's, and say so.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/target/cluster.h"

namespace fsdp::planner {

struct PaperRun {
  int hosts = 1;
  nlohmann::json keys;  // of the config

  // Differs from that of any other run.
  std::string name() const { return std::to_string(hosts) + " " + keys.dump(); }
};

// Returns hosts of 8 A100 with 80 GB and a network of 2 Tbit/s each (section 5.1).
Cluster paper_cluster(int hosts);

constexpr int kPaperRanksPerHost = 8;

// Figure 6(a): T5 of three sizes on one host, 8 samples of 512 tokens a GPU with recomputation; the text has neither.
const std::vector<std::string>& scaled_models();
PaperRun scale_run(const std::string& model, const std::string& strategy, const std::string& dtype);

// Figures 6(b), 7(b) and 8(b): minGPT-175B with blocks of 2048 tokens, bf16 and recomputation.
const std::vector<int64_t>& gpt_gpus();
const std::vector<int64_t>& gpt_batches();
PaperRun gpt_run(int64_t gpus, int64_t batch, bool prefetches = true);

// Figure 6(c). Images with recomputation, without which DeepViT does not fit; the text does not say.
struct LimitedModel {
  std::string title;
  std::string model;
  int hosts = 2;
  int64_t batch = 1;
};
const std::vector<LimitedModel>& limited_models();
PaperRun limiter_run(const LimitedModel& model, bool is_limited);

// Figures 7(c) and 8(c): T5-11B with 512 tokens, bf16 and recomputation.
const std::vector<int64_t>& t5_gpus();
const std::vector<int64_t>& t5_batches();
PaperRun t5_run(int64_t gpus, int64_t batch);

// Figures 7(a) and 8(a): DHEN.
PaperRun dhen_run();

// Section 3.2: T5-2B by sharding strategy, for the bytes that ranks send.
const std::vector<std::string>& volume_strategies();
PaperRun volume_run(const std::string& strategy, int hosts);
const std::vector<int>& volume_hosts();

// Returns all of them, each once.
std::vector<PaperRun> paper_runs();

}  // namespace fsdp::planner
