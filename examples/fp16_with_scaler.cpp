// fp16 with dynamic loss scaling: losses are scaled up so that small gradients do not vanish in fp16. If a gradient
// overflows on any rank, all ranks skip the step, and the scale is lowered:
//   torchrun --no-python --nproc-per-node 2 build/fp16_with_scaler
#include <limits>

#include "example.h"
#include "fsdp/grad_scaler.h"

using namespace example;

int main() {
  return run([] {
    fsdp::Options options = make_options();
    const int rank = options.communicator->rank(), last_rank = options.communicator->size() - 1;
    options.param_dtype = torch::kHalf;
    options.reduce_dtype = torch::kFloat;
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-3));

    fsdp::GradScalerOptions scaling;
    scaling.init_scale = 65536.0;
    scaling.growth_interval = 10;  // the scale doubles after ten good steps in a row
    fsdp::ShardedGradScaler scaler(scaling);

    constexpr int kBadStep = 20;
    float first = 0, last = 0;
    bool stepped_on_bad_gradient = true;
    for (int step = 0; step < 40; ++step) {
      sharded->zero_grad();
      at::Tensor input = make_input(rank, 0);
      const at::Tensor loss = torch::mse_loss(net->forward(input).to(torch::kFloat), input.narrow(1, 0, 1).sin());
      (step == 0 ? first : last) = loss.item<float>();
      scaler.scale(loss).backward();
      if (step == kBadStep && rank == last_rank) {  // simulates an overflow on one rank
        for (const at::Tensor& leaf : sharded->parameters()) {
          if (leaf.grad().defined()) leaf.mutable_grad().fill_(std::numeric_limits<float>::infinity());
        }
      }
      scaler.unscale_(*sharded);  // must come before any other use of the gradients
      sharded->clip_grad_norm_(1.0);
      const double scale = scaler.scale();
      const bool stepped = scaler.step(*sharded, optimizer);
      scaler.update();
      if (step == kBadStep) stepped_on_bad_gradient = stepped;
      if (!stepped && rank == 0) {
        std::cout << "step " << step << " skipped, scale " << scale << " -> " << scaler.scale() << "\n";
      }
    }
    if (rank == 0) std::cout << "loss " << first << " -> " << last << ", scale " << scaler.scale() << "\n";
    require(!stepped_on_bad_gradient, "all ranks skip a step in which one rank overflows");
    require(last < first, "the loss falls");
  });
}
