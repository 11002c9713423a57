// Prefetching by hand: the gather of the next block is issued before this block is computed, so that it travels
// meanwhile. The first operator that needs the block waits for what is left of it:
//   torchrun --no-python --nproc-per-node 2 build/prefetch_by_hand
#include "example.h"

using namespace example;

at::Tensor forward_with_prefetch(Net& net, fsdp::ShardedModule& sharded, at::Tensor x) {
  const size_t count = net->blocks.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + 1 < count) sharded.unshard(*net->blocks[i + 1], /*async_op=*/true);
    x = net->blocks[i](x);
  }
  return net->head(x);
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    const at::Tensor input = make_input(rank, 0);

    at::Tensor expected, output;
    auto gathers_of = [&](const std::function<void()>& body) {
      const int64_t before = sharded->stats().all_gathers;
      body();
      sharded->reshard();
      return sharded->stats().all_gathers - before;
    };
    const int64_t gathers = gathers_of([&] { expected = net->forward(input).detach(); });
    const int64_t with_prefetch = gathers_of([&] { output = forward_with_prefetch(net, *sharded, input).detach(); });
    if (rank == 0) std::cout << "gathers: " << gathers << ", with prefetching " << with_prefetch << "\n";
    require(torch::equal(output, expected), "prefetching changes no result");
    require(gathers == with_prefetch, "nothing is gathered twice");

    // Issued is not gathered: the handle waits, and units that nobody used can be released again.
    fsdp::UnshardHandle handle = sharded->unshard(*net->blocks[0], /*async_op=*/true);
    require(sharded->stats().gathered_units == 0, "unshard() only issues a gather");
    handle.wait();
    require(sharded->stats().gathered_units == 1, "wait() ends it");
    sharded->reshard(*net->blocks[0]);
    require(sharded->stats().gathered_units == 0, "reshard() releases it");
  });
}
