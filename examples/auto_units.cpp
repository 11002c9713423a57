// Units without a wrap policy: the engine records the order in which the first forward uses the parameters, and cuts
// this order into units that respect a memory bound:
//   torchrun --no-python --nproc-per-node 2 build/auto_units
#include "example.h"

using namespace example;

// Trains for three steps with AdamW and returns all weights, concatenated.
at::Tensor train(Net& net, fsdp::ShardedModule& sharded, int rank) {
  torch::optim::AdamW optimizer(sharded.parameters());  // created before the units, and valid after they are made
  for (int step = 0; step < 3; ++step) {
    sharded.zero_grad();
    loss_of(*net, make_input(rank, step)).backward();
    optimizer.step();
  }
  std::map<std::string, at::Tensor> weights;
  sharded.for_each_full_parameter(
      [&](const std::string& fqn, const at::Tensor& full) { weights[fqn] = full.flatten().clone(); });
  std::vector<at::Tensor> all;
  for (const auto& [fqn, weight] : weights) all.push_back(weight);
  return torch::cat(all);
}

int main() {
  return run([] {
    fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    Net by_policy = make_net();
    const at::Tensor want = train(by_policy, *fsdp::fully_shard(by_policy, options), rank);

    constexpr int64_t kBound = 450'000;
    options.auto_wrap_policy = {};
    options.auto_units = fsdp::AutoUnits{.memory_bound = kBound};
    Net net = make_net();
    auto sharded = fsdp::fully_shard(net, options);
    const at::Tensor got = train(net, *sharded, rank);
    const fsdp::EngineStats stats = sharded->diagnostics().stats();
    const int64_t peak = stats.peak_gathered_bytes + stats.peak_gradient_buffer_bytes;
    if (rank == 0) {
      std::cout << stats.units << " units; gathered parameters and gradient buffers took " << peak
                << " bytes at a time\n";
    }
    require(torch::allclose(got, want, 1e-4, 1e-5), "which units there are changes no number but for rounding");
    require(peak <= kBound, "the bound is kept");

    // Given the order of an earlier run, fully_shard itself makes the units. This is needed, for example, to load
    // optimizer state before the first backward.
    options.auto_units->order = sharded->execution_order();
    Net again = make_net();
    auto resumed = fsdp::fully_shard(again, options);
    require(resumed->diagnostics().stats().units == stats.units, "the same order is cut alike");
  });
}
