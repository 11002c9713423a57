// Trains a chain of blocks whose weights are split over ranks, for benchmarks/tensor_parallel.py and
// tests/python/test_tensor_parallel_reference.py, which start it once for each rank with the environment of torchrun.
// PyTorch's side is torch_tensor_parallel.py.
// Usage: tensor_parallel_bench TENSOR_PARALLEL BLOCKS WIDTH ROWS STEPS [SEQUENCE_PARALLEL]
// The other ranks are data-parallel. TENSOR_PARALLEL 0: the whole model in LibTorch, without this library.
// SEQUENCE_PARALLEL 1: the rows between the linear layers are split, too.
// Each rank prints JSON: the losses, the seconds of each step, and the bytes that it has sent to its tensor-parallel
// group.
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "chain.h"
#include "fsdp/backends.h"
#include "fsdp/device_mesh.h"
#include "fsdp/fully_shard.h"

namespace fsdp::benchmarks {
namespace {

struct Setting {
  int tensor_parallel = 1;
  int blocks = 8;
  int64_t width = 256;
  int64_t rows = 256;
  int steps = 3;
  bool sequence_parallel = false;
};

std::shared_ptr<ShardedModule> split(Chain& chain, DeviceMesh& mesh, bool sequence_parallel) {
  Options options;
  options.mesh = mesh.data_parallel();
  options.auto_wrap_policy = module_class_policy<BlockImpl>();
  options.tensor_parallel = {mesh.group("tp"), {{"*.up", SplitStyle::kColwise}, {"*.down", SplitStyle::kRowwise}}};
  if (sequence_parallel) {
    options.tensor_parallel->plan.push_back({"*.norm", SplitStyle::kSharedByParts});
    options.tensor_parallel->sequence_dim = 0;
  }
  return fully_shard(chain, options);
}

at::Tensor run_forward(Chain& chain, const at::Tensor& samples, const SplitSequence* rows) {
  return rows ? rows->gather(chain.forward(rows->take(samples))) : chain.forward(samples);
}

int run(const Setting& setting) {
  const auto world = make_cpu_communicator(rank_environment()).communicator;
  const int tensor = std::max(1, setting.tensor_parallel);
  DeviceMesh mesh = DeviceMesh::make(world, {{"dp_shard", -1}, {"tp", tensor}});
  Chain chain(setting.width, 0, setting.blocks);
  const auto sharded = setting.tensor_parallel > 0 ? split(chain, mesh, setting.sequence_parallel) : nullptr;
  std::optional<SplitSequence> rows;
  if (setting.sequence_parallel) rows.emplace(mesh.group("tp"), 0);
  torch::optim::SGD optimizer(sharded ? sharded->parameters() : chain.parameters(), torch::optim::SGDOptions(0.05));
  nlohmann::json losses = nlohmann::json::array(), seconds = nlohmann::json::array();
  for (int step = 0; step < setting.steps; ++step) {
    world->barrier({"step", static_cast<uint64_t>(step), Pass::kUser});
    const auto begun = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    const at::Tensor samples = numbers({setting.rows, setting.width}, 0.11, step + 0.7 * mesh.rank("dp_shard"));
    const at::Tensor hidden = run_forward(chain, samples, rows ? &*rows : nullptr);
    const at::Tensor loss = (hidden * hidden).mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
    world->barrier({"end of step", static_cast<uint64_t>(step), Pass::kUser});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  const nlohmann::json result{{"losses", losses}, {"seconds", seconds}, {"bytes_sent", mesh.group("tp")->bytes_sent()}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace fsdp::benchmarks

int main(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    std::fprintf(stderr, "usage: tensor_parallel_bench TENSOR_PARALLEL BLOCKS WIDTH ROWS STEPS [SEQUENCE_PARALLEL]\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  try {
    return fsdp::benchmarks::run({number(1), number(2), number(3), number(4), number(5), argc == 7 && number(6) != 0});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
