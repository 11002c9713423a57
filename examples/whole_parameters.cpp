// Whole parameters in the middle of training: initialising a sharded model, looking at it, and clipping the gradient of
// one parameter by its own norm:
//   torchrun --no-python --nproc-per-node 2 build/whole_parameters
#include <cmath>

#include "example.h"
#include "fsdp/fsdp.h"

using namespace example;

void initialise(torch::nn::Module& module) {
  if (auto* linear = module.as<torch::nn::LinearImpl>()) {
    torch::nn::init::normal_(linear->weight, 0.0, 0.02);
    torch::nn::init::zeros_(linear->bias);
  }
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    fsdp::FullyShardedDataParallel<Net> model(make_net(), options);
    const at::Tensor& weight = model->blocks[0]->up->weight;

    // Runs on every module while parameters may be written; all ranks draw the same numbers.
    torch::manual_seed(7);
    model.apply(initialise);
    Net plain = make_net();
    torch::manual_seed(7);
    plain->apply(initialise);
    {
      torch::NoGradGuard no_grad;
      require(torch::equal(weight, plain->blocks[0]->up->weight), "apply() initialises as it does a plain module");
    }

    loss_of(model, make_input(rank, 0)).backward();
    fsdp::SummonOptions summon;
    summon.with_grads = true;
    model.summon_full_params(summon, [&] {  // weights and gradients are whole; what is written goes to the shards
      torch::NoGradGuard no_grad;
      at::Tensor gradient = weight.grad();
      if (rank == 0) {
        std::cout << "weight " << weight.sizes() << " of norm " << weight.norm().item<float>() << ", gradient "
                  << gradient.sizes() << " of norm " << gradient.norm().item<float>() << "\n";
      }
      gradient.mul_(0.001 / gradient.norm());
    });
    summon.writeback = false;  // only to look at them
    model.summon_full_params(summon, [&] {
      require(std::abs(weight.grad().norm().item<double>() - 0.001) < 1e-6, "the gradient of the shards was clipped");
    });

    // One parameter after the other, for a file, say: never more than one unit is gathered.
    int64_t elements = 0;
    model.sharded().for_each_full_parameter(
        [&](const std::string&, const at::Tensor& full) { elements += full.numel(); });
    int64_t expected = 0;
    for (const at::Tensor& parameter : plain->parameters()) expected += parameter.numel();
    require(elements == expected, "every parameter is visited whole");
    if (rank == 0) std::cout << "visited " << elements << " elements\n";
  });
}
