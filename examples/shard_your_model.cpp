// Shards a model of your own over the ranks that torchrun or mpirun started and trains it:
//   torchrun --no-python --nproc-per-node 2 build/shard_your_model
#include <torch/torch.h>

#include <iostream>

#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : up(register_module("up", torch::nn::Linear(64, 256))),
        down(register_module("down", torch::nn::Linear(256, 64))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(Block(), Block(), Block(), torch::nn::Linear(64, 1));

  fsdp::Options options;
  options.communicator = fsdp::make_cpu_communicator(fsdp::rank_environment()).communicator;
  options.auto_wrap_policy = fsdp::module_class_policy<BlockImpl>();
  auto sharded = fsdp::fully_shard(*model, options);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-3));

  torch::manual_seed(1 + options.communicator->rank());
  for (int step = 0; step < 50; ++step) {
    auto input = torch::randn({32, 64});
    auto loss = torch::mse_loss(model->forward(input), input.narrow(1, 0, 1).sin());
    sharded->zero_grad();
    loss.backward();
    sharded->clip_grad_norm_(1.0);
    optimizer.step();
    if (options.communicator->rank() == 0 && step % 10 == 0)
      std::cout << "step " << step << " loss " << loss.item<float>() << "\n";
  }
}
