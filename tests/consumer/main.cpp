// A project that uses the installed library: shards its own module over one rank and checks that training lowers the
// loss.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::nn::Sequential model(torch::nn::Linear(3, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
  fsdp::Options options;
  options.communicator = fsdp::make_gloo_communicator(fsdp::rank_environment());
  auto sharded = fsdp::fully_shard(*model, options);
  torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.1));
  const at::Tensor input = torch::ones({4, 3});
  const auto step = [&] {
    sharded->zero_grad();
    at::Tensor loss = model->forward(input).square().mean();
    loss.backward();
    optimizer.step();
    return loss.item<float>();
  };
  const float first = step(), second = step();
  std::cout << sharded->diagnostics().describe_units() << "\nloss " << first << " then " << second << "\n";
  return second < first ? 0 : 1;
}
