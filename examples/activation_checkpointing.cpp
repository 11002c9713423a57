// Activation checkpointing: forward keeps only the input of each block, and backward runs the block again. With
// selected operators, the results of these operators are kept as well, so that only the cheaper operators run again:
//   torchrun --no-python --nproc-per-node 2 build/activation_checkpointing
#include "example.h"
#include "fsdp/activation_checkpoint.h"

using namespace example;

// Counts the bytes of all tensors that are alive.
struct LiveBytes : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { bytes += size; }
  bool memoryProfilingEnabled() const override { return true; }
};

at::Tensor forward(Net& net, const fsdp::CheckpointPolicy& policy, at::Tensor x) {
  for (size_t i = 0; i < net->blocks.size(); ++i) x = policy.forward(static_cast<int64_t>(i), net->blocks[i], x);
  return net->head(x);
}

struct Outcome {
  int64_t kept = 0;  // bytes that forward keeps for backward
  at::Tensor gradients;
};

Outcome forward_and_backward(Net& net, fsdp::ShardedModule& sharded, const fsdp::CheckpointPolicy& policy,
                             const at::Tensor& input) {
  sharded.zero_grad();
  Outcome outcome;
  at::Tensor output;
  {
    auto live = std::make_shared<LiveBytes>();
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    output = forward(net, policy, input);
    outcome.kept = live->bytes;
  }
  torch::mse_loss(output, input.narrow(1, 0, 1).sin()).backward();
  outcome.gradients = gradients_of(sharded);
  return outcome;
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    torch::manual_seed(1 + rank);
    const at::Tensor input = torch::randn({512, 64});

    const auto none = fsdp::CheckpointPolicy();
    const auto full = fsdp::CheckpointPolicy::full();
    const auto selected = fsdp::CheckpointPolicy::selected_operators({"aten::addmm"});  // Linear calls this operator
    forward_and_backward(net, *sharded, none, input);                                   // warm-up: allocates buffers
    const Outcome plain = forward_and_backward(net, *sharded, none, input);
    const Outcome recomputed = forward_and_backward(net, *sharded, full, input);
    const Outcome partly = forward_and_backward(net, *sharded, selected, input);

    if (rank == 0) {
      std::cout << "bytes kept for backward: " << plain.kept << " without checkpointing, " << partly.kept
                << " with the results of aten::addmm kept, " << recomputed.kept << " with blocks recomputed\n";
    }
    require(recomputed.kept < partly.kept && partly.kept < plain.kept, "checkpointing keeps less");
    require(torch::equal(recomputed.gradients, plain.gradients), "recomputation changes no gradient");
    require(torch::equal(partly.gradients, plain.gradients), "nor does it with selected operators");
  });
}
