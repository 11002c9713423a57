// LAMB, an optimizer that needs the norms of whole parameters and of their updates. All its other computations work
// element by element on shards:
//   torchrun --no-python --nproc-per-node 2 build/lamb
#include <algorithm>
#include <cmath>

#include "example.h"
#include "fsdp/shard_norms.h"

using namespace example;

// Adam's update direction with weight decay, for a whole parameter or a part of one.
struct Direction {
  at::Tensor mean, square;
  int steps = 0;

  at::Tensor operator()(const at::Tensor& weight, const at::Tensor& gradient) {
    if (steps++ == 0) mean = torch::zeros_like(weight), square = torch::zeros_like(weight);
    mean.mul_(0.9).add_(gradient, 1 - 0.9);
    square.mul_(0.99).addcmul_(gradient, gradient, 1 - 0.99);
    const at::Tensor denominator = (square / (1 - std::pow(0.99, steps))).sqrt() + 1e-6;
    return mean / (1 - std::pow(0.9, steps)) / denominator + 0.01 * weight;
  }
};

double step_size(double weight_norm, double update_norm) {
  return 0.01 * (weight_norm > 0 && update_norm > 0 ? weight_norm / update_norm : 1.0);
}

// With use_orig_params (the default), there is one leaf and one norm for each parameter, in the same order.
void lamb_step(fsdp::ShardedModule& sharded, std::vector<Direction>& directions) {
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> leaves = sharded.parameters(), updates(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].grad().defined()) updates[i] = directions[i](leaves[i], leaves[i].grad());
  }
  const auto weight_norms = fsdp::parameter_norms(sharded, fsdp::NormOf::kParameter);
  const auto update_norms = fsdp::parameter_norms(sharded, updates);
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (updates[i].defined()) leaves[i].sub_(updates[i], step_size(weight_norms[i], update_norms[i]));
  }
}

void lamb_step(Net& net, std::vector<Direction>& directions) {  // for a model in one process
  torch::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters = net->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor update = directions[i](parameters[i], parameters[i].grad());
    parameters[i].sub_(update, step_size(parameters[i].norm().item<double>(), update.norm().item<double>()));
  }
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank(), ranks = options.communicator->size();
    Net net = make_net(), alone = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    std::vector<Direction> directions(sharded->parameters().size()), directions_alone(alone->parameters().size());
    for (int step = 0; step < 5; ++step) {
      sharded->zero_grad();
      loss_of(*net, make_input(rank, step)).backward();
      lamb_step(*sharded, directions);
      alone->zero_grad();
      for (int other = 0; other < ranks; ++other) (loss_of(*alone, make_input(other, step)) / ranks).backward();
      lamb_step(alone, directions_alone);
    }
    const auto expected = alone->named_parameters();
    double difference = 0;
    sharded->for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) {
      difference = std::max(difference, (full - expected[fqn]).abs().max().item<double>());
    });
    if (rank == 0) std::cout << "largest difference to LAMB in one process: " << difference << "\n";
    require(difference < 1e-3, "LAMB over shards equals LAMB in one process");
  });
}
