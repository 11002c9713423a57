// The optimizer runs inside backward: as soon as the gradients of a unit are reduced, a hook updates the unit's
// parameters and clears their gradients. The gradients of several units therefore never exist at the same time:
//   torchrun --no-python --nproc-per-node 2 build/optimizer_in_backward
#include <algorithm>
#include <map>

#include "example.h"

using namespace example;

using Sgd = torch::optim::SGD;
constexpr int kSteps = 5;

torch::optim::SGDOptions sgd_options() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank();

    Net late_net = make_net();  // for comparison: one optimizer step after backward
    auto late = fsdp::fully_shard(*late_net, options);
    Sgd optimizer(late->parameters(), sgd_options());
    for (int step = 0; step < kSteps; ++step) {
      late->zero_grad();
      loss_of(*late_net, make_input(rank, step)).backward();
      optimizer.step();
    }

    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    auto bytes_of_gradients = [&] {
      int64_t bytes = 0;
      for (const at::Tensor& leaf : sharded->parameters()) bytes += leaf.grad().defined() ? leaf.nbytes() : 0;
      return bytes;
    };
    int64_t most = 0, all = 0;
    for (const at::Tensor& leaf : sharded->parameters()) all += leaf.nbytes();
    std::map<std::string, std::unique_ptr<Sgd>> optimizers;  // one for each unit
    sharded->hooks().set_unit_reduced_hook([&](const std::string& unit, const std::vector<at::Tensor>& leaves) {
      auto& own = optimizers[unit];
      if (!own) own = std::make_unique<Sgd>(leaves, sgd_options());
      most = std::max(most, bytes_of_gradients());
      own->step();
      own->zero_grad();
    });
    for (int step = 0; step < kSteps; ++step) loss_of(*net, make_input(rank, step)).backward();

    if (rank == 0) std::cout << "at most " << most << " of " << all << " bytes of gradients waited at a time\n";
    require(most < all / 2, "gradients of several units never wait side by side");
    require(bytes_of_gradients() == 0, "no gradient is left after backward");
    for (size_t i = 0; i < sharded->parameters().size(); ++i) {
      require(torch::equal(sharded->parameters()[i], late->parameters()[i]),
              "weights equal those of a step after backward");
    }
  });
}
