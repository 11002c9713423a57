// Measures a step (forward and backward) of chains of blocks that are cut flat and by rows. Steps of both take turns.
// benchmarks/shard_cut.py starts it once for each rank, with the environment of torchrun.
// Usage: shard_cut BACKEND BLOCKS WIDTH STEPS, with the backends of make_…_communicator: gloo, shm. Rank 0 prints the
// milliseconds of each step, as JSON.
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "block.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"

namespace {

using fsdp::benchmarks::Block;
using fsdp::benchmarks::BlockImpl;

class Chain {
 public:
  Chain(fsdp::ShardCut cut, int64_t blocks, int64_t width, const std::shared_ptr<fsdp::Communicator>& communicator) {
    torch::manual_seed(0);
    for (int64_t i = 0; i < blocks; ++i) model_->push_back(Block(width, 4 * width));
    fsdp::Options options;
    options.communicator = communicator;
    options.auto_wrap_policy = fsdp::module_class_policy<BlockImpl>();
    options.shard_cut = cut;
    sharded_ = fsdp::fully_shard(*model_, options);
  }

  double milliseconds_of_step(const at::Tensor& input) {
    const auto start = std::chrono::steady_clock::now();
    sharded_->zero_grad();
    model_->forward(input).sum().backward();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  torch::nn::Sequential model_;
  std::shared_ptr<fsdp::ShardedModule> sharded_;
};

std::string joined(const std::vector<double>& times) {
  std::string text;
  for (double time : times) text += (text.empty() ? "" : ", ") + std::to_string(time);
  return "[" + text + "]";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: shard_cut BACKEND BLOCKS WIDTH STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const bool shm = std::string(argv[1]) == "shm";
  const fsdp::RankEnvironment environment = fsdp::rank_environment();
  const auto communicator = shm ? fsdp::make_shm_communicator(environment) : fsdp::make_gloo_communicator(environment);
  const int64_t blocks = std::atoll(argv[2]), width = std::atoll(argv[3]);
  Chain flat(fsdp::ShardCut::kFlat, blocks, width, communicator),
      rows(fsdp::ShardCut::kRows, blocks, width, communicator);
  const at::Tensor input = torch::randn({4, width});
  constexpr int kWarmUp = 5;
  std::map<std::string, std::vector<double>> times;
  for (int step = 0; step < kWarmUp + std::atoi(argv[4]); ++step) {
    const double of_flat = flat.milliseconds_of_step(input), of_rows = rows.milliseconds_of_step(input);
    if (step < kWarmUp) continue;
    times["flat"].push_back(of_flat);
    times["rows"].push_back(of_rows);
  }
  if (environment.rank == 0) {
    std::printf("{\"flat\": %s, \"rows\": %s}\n", joined(times["flat"]).c_str(), joined(times["rows"]).c_str());
  }
}
