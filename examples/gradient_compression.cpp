// Gradient compression: a communication hook reduces gradients instead of the engine. This hook sends gradients in
// bf16, half the bytes of fp32, while everything else stays in fp32:
//   torchrun --no-python --nproc-per-node 2 build/gradient_compression
#include "example.h"

using namespace example;

// `unsharded` holds the whole gradient of a unit, as computed on this rank. The hook fills `reduced` with this rank's
// part of the sum over all ranks, times `scale`.
void reduce_in_bf16(const fsdp::ReduceRequest& request) {
  const at::Tensor low = request.unsharded.to(torch::kBFloat16);
  at::Tensor part = low;
  double scale = request.scale;
  if (request.shard) {  // null if parameters are not sharded
    const int ranks = request.shard->size();
    part = torch::empty({request.reduced.numel()}, low.options());
    const fsdp::CollectiveId id{request.unit + ", bf16", 0, fsdp::Pass::kUser};
    request.shard->reduce_scatter(part, low, {1.0 / ranks}, id)->wait();
    scale *= ranks;
  }
  if (request.replicate) {  // null without replicas (hybrid strategies and NO_SHARD have replicas)
    const fsdp::CollectiveId id{request.unit + ", bf16, replicas", 0, fsdp::Pass::kUser};
    request.replicate->all_reduce(request.reduced, part, {scale}, id)->wait();
  } else {
    at::Tensor(request.reduced).copy_(part).mul_(scale);
  }
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const fsdp::Communicator& world = *options.communicator;
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    // Runs forward and backward. Returns the bytes that the backward sends, without gathers: the parameters are
    // gathered before it.
    auto backward = [&] {
      sharded->zero_grad();
      const at::Tensor loss = loss_of(*net, make_input(world.rank(), 0));
      sharded->unshard();
      const uint64_t before = world.bytes_sent();
      loss.backward();
      return world.bytes_sent() - before;
    };
    const uint64_t plain_bytes = backward();
    const at::Tensor plain = gradients_of(*sharded);
    sharded->hooks().set_communication_hook(reduce_in_bf16);
    const uint64_t bytes = backward();
    const at::Tensor compressed = gradients_of(*sharded);

    const double error = ((compressed - plain).norm() / plain.norm()).item<double>();
    if (world.rank() == 0) {
      std::cout << "gradients in fp32: " << plain_bytes << " bytes, in bf16: " << bytes << " bytes, relative error "
                << error << "\n";
    }
    require(error > 0 && error < 0.01, "gradients are those of fp32, rounded");
    require(world.size() == 1 || bytes < plain_bytes * 6 / 10, "about half the bytes are sent");
  });
}
