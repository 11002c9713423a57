// Gradient accumulation: several backward passes for one optimizer step. Inside no_sync(), each rank adds up its
// gradients without communication. The first backward after no_sync() reduces the sum:
//   torchrun --no-python --nproc-per-node 2 build/gradient_accumulation
#include "example.h"

using namespace example;

constexpr int kPasses = 4;

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    auto loss = [&](int pass) { return loss_of(*net, make_input(rank, pass)) / kPasses; };
    auto reductions = [&] {
      return sharded->diagnostics().stats().reduce_scatters + sharded->diagnostics().stats().all_reduces;
    };

    // Every pass reduces its gradients: least memory, most communication.
    int64_t before = reductions();
    for (int pass = 0; pass < kPasses; ++pass) loss(pass).backward();
    const int64_t in_every_pass = reductions() - before;
    const at::Tensor expected = gradients_of(*sharded);

    // Only the last pass reduces. Until then, each rank holds whole gradients.
    sharded->zero_grad();
    before = reductions();
    {
      auto no_sync = sharded->no_sync();
      for (int pass = 0; pass + 1 < kPasses; ++pass) loss(pass).backward();
    }
    loss(kPasses - 1).backward();
    const int64_t in_last_pass = reductions() - before;
    require(torch::allclose(gradients_of(*sharded), expected, 1e-4, 1e-7), "no_sync() brings the same gradients");

    // BackwardOptions do the same for a single backward, without a scope.
    sharded->zero_grad();
    for (int pass = 0; pass < kPasses; ++pass) {
      fsdp::BackwardOptions backward;
      backward.requires_gradient_sync = pass + 1 == kPasses;
      sharded->backward(loss(pass), backward);
    }
    require(torch::allclose(gradients_of(*sharded), expected, 1e-4, 1e-7), "BackwardOptions do the same");

    if (rank == 0) {
      std::cout << kPasses << " passes: " << in_every_pass << " reductions when each pass reduces, " << in_last_pass
                << " with no_sync\n";
    }
    require(in_every_pass == kPasses * in_last_pass, "no_sync() saves the reductions of all passes but one");
  });
}
