// Offload: shards and optimizer state lie in files, for models that do not fit into the machine's memory. The results
// are the same:
//   torchrun --no-python --nproc-per-node 2 build/offload
// With Options::cpu_offload alone, they lie in host memory instead, while a device computes.
#include <filesystem>

#include "example.h"

using namespace example;

at::Tensor train(const fsdp::Options& options) {
  Net net = make_net();
  auto sharded = fsdp::fully_shard(net, options);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-2));
  at::Tensor loss;
  for (int step = 0; step < 5; ++step) {
    sharded->zero_grad();
    loss = loss_of(*net, make_input(options.communicator->rank(), step));
    loss.backward();
    sharded->with_offloaded_memory([&] { optimizer.step(); });  // the optimizer's state is created in files
  }
  if (options.communicator->rank() == 0) std::cout << sharded->diagnostics().memory_summary();
  return loss.detach();
}

int main() {
  return run([] {
    fsdp::Options options = make_options();
    const at::Tensor usual = train(options);
    const std::filesystem::path folder = std::filesystem::temp_directory_path() / "fsdp-example-offload";
    options.offload_path = folder.string();
    const at::Tensor offloaded = train(options);
    require(torch::equal(offloaded, usual), "where shards lie changes no number");
    require(std::filesystem::is_empty(folder), "files have no names: the folder stays empty");
    options.communicator->barrier({"end of offload"});
    if (options.communicator->rank() == 0) std::filesystem::remove(folder);
    if (options.communicator->rank() == 0) std::cout << "the same loss with shards in files\n";
  });
}
