// Whole parameters in the middle of training: initialises a sharded model, reads its parameters, and clips the gradient
// of one parameter by its own norm:
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

    // Calls `initialise` for every module while its parameters may be written. All ranks draw the same random numbers.
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
    model.summon_full_params(summon, [&] {  // weights and gradients are whole; writes go back to the shards
      torch::NoGradGuard no_grad;
      at::Tensor gradient = weight.grad();
      if (rank == 0) {
        std::cout << "weight " << weight.sizes() << " of norm " << weight.norm().item<float>() << ", gradient "
                  << gradient.sizes() << " of norm " << gradient.norm().item<float>() << "\n";
      }
      gradient.mul_(0.001 / gradient.norm());
    });
    summon.writeback = false;  // only reads them
    model.summon_full_params(summon, [&] {
      require(std::abs(weight.grad().norm().item<double>() - 0.001) < 1e-6, "the gradient of the shards was clipped");
    });

    // Visits one whole parameter after the other, for example to write them to a file. At most one unit is gathered at
    // a time.
    int64_t elements = 0;
    model.sharded().for_each_full_parameter(
        [&](const std::string&, const at::Tensor& full) { elements += full.numel(); });
    int64_t expected = 0;
    for (const at::Tensor& parameter : plain->parameters()) expected += parameter.numel();
    require(elements == expected, "every parameter is visited whole");
    if (rank == 0) std::cout << "visited " << elements << " elements\n";
  });
}
