// Prefetching: units are gathered before they are needed, while other units compute. By default, the engine expects the
// order of the previous pass. A list of modules, or a call, sets the order by hand:
//   torchrun --no-python --nproc-per-node 2 build/prefetching [TRACE.json]
#include "example.h"

using namespace example;

// The result of three training steps, and the number of gathers that were issued ahead of their use.
struct Outcome {
  at::Tensor loss;
  int64_t ahead = 0;
};
using Prepare = std::function<void(Net&, fsdp::ShardedModule&)>;

Outcome train(const fsdp::Options& options, const Prepare& prepare = {}, const std::string& trace = {}) {
  Net net = make_net();
  auto sharded = fsdp::fully_shard(net, options);
  if (prepare) prepare(net, *sharded);
  torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.05));
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    if (step == 2 && !trace.empty()) sharded->tracing().start();
    sharded->zero_grad();
    outcome.loss = loss_of(*net, make_input(options.communicator->rank(), step));
    outcome.loss.backward();
    optimizer.step();
  }
  if (!trace.empty())
    fsdp::write_trace(trace, *options.communicator, sharded->tracing().stop());  // for ui.perfetto.dev
  outcome.ahead = sharded->diagnostics().stats().prefetches;
  return outcome;
}

void prefetch_by_lists(Net& net, fsdp::ShardedModule& sharded) {
  auto& blocks = net->blocks;
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    sharded.set_modules_to_forward_prefetch(*blocks[i], {*blocks[i + 1]});
    sharded.set_modules_to_backward_prefetch(*blocks[i + 1], {*blocks[i]});
  }
}

// Runs inference, and issues the gather of the next block by a call.
at::Tensor forward_by_hand(Net& net, fsdp::ShardedModule& sharded, at::Tensor x) {
  torch::NoGradGuard no_grad;
  const size_t count = net->blocks.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + 1 < count) sharded.unshard(*net->blocks[i + 1], /*async_op=*/true);
    x = net->blocks[i](x);
  }
  return net->head(x);
}

int main(int argc, char** argv) {
  return run([&] {
    fsdp::Options options = make_options();
    const bool alone = options.communicator->size() == 1;  // a single rank gathers nothing
    const Outcome automatic = train(options, {}, argc > 1 ? argv[1] : "");

    options.forward_prefetch = false;
    options.backward_prefetch = fsdp::BackwardPrefetch::kNone;
    const Outcome none = train(options);
    const Outcome lists = train(options, prefetch_by_lists);

    Net net = make_net();
    auto sharded = fsdp::fully_shard(net, options);
    const at::Tensor input = make_input(options.communicator->rank(), 0);
    const at::Tensor by_hand = forward_by_hand(net, *sharded, input);

    if (options.communicator->rank() == 0) {
      std::cout << "gathers issued ahead in three steps: " << automatic.ahead << " by itself, " << none.ahead
                << " without prefetching, " << lists.ahead << " by lists\n";
    }
    require(none.ahead == 0, "nothing is gathered ahead when it is off");
    require(alone || automatic.ahead > 0, "the second step knows the order of the first");
    require(alone || lists.ahead > automatic.ahead, "lists need no step to learn from");
    require(torch::equal(automatic.loss, none.loss) && torch::equal(lists.loss, none.loss),
            "prefetching changes no number");
    torch::NoGradGuard no_grad;
    require(torch::equal(by_hand, net->forward(input)), "nor does it by hand");
  });
}
