// Hybrid sharding: parameters are sharded inside groups of ranks (for example, one group for each host) and replicated
// between the groups, so that gathers stay inside a group. Needs an even number of ranks:
//   torchrun --no-python --nproc-per-node 4 build/hybrid_sharding
#include "example.h"
#include "fsdp/backends.h"
#include "fsdp/mesh.h"

using namespace example;

struct Outcome {
  uint64_t inside = 0, between = 0;  // bytes that this rank has sent to ranks of its own group, and to other ranks
  at::Tensor weight;
};

Outcome train(fsdp::Options options, const fsdp::ProcessMesh& mesh) {
  Net net = make_net();
  auto sharded = fsdp::fully_shard(*net, options);
  torch::optim::SGD optimizer(sharded->parameters(), torch::optim::SGDOptions(0.05));
  const uint64_t shard_before = mesh.shard->bytes_sent(), replicate_before = mesh.replicate->bytes_sent();
  const std::vector<uint64_t> world_before = mesh.world->bytes_sent_to();
  for (int step = 0; step < 5; ++step) {
    sharded->zero_grad();
    loss_of(*net, make_input(mesh.rank(), step)).backward();
    optimizer.step();
  }
  Outcome outcome;  // counts the collectives of the two groups, then those over all ranks
  outcome.inside = mesh.shard->bytes_sent() - shard_before;
  outcome.between = mesh.replicate->bytes_sent() - replicate_before;
  const std::vector<uint64_t> world_after = mesh.world->bytes_sent_to();
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const bool same_group = rank / mesh.shard->size() == mesh.rank() / mesh.shard->size();
    (same_group ? outcome.inside : outcome.between) += world_after[rank] - world_before[rank];
  }
  torch::NoGradGuard no_grad;
  outcome.weight = net->blocks[0]->up->weight + 0;  // reading a parameter gathers it; `+ 0` copies it
  return outcome;
}

int main() {
  return run([] {
    // Over Gloo, the ranks send the same bytes as between hosts. Over shared memory, a gather would send nothing.
    fsdp::Options options = make_options(fsdp::make_gloo_communicator(fsdp::rank_environment()));
    const int size = options.communicator->size();
    if (size % 2 != 0) throw std::runtime_error("hybrid_sharding needs an even number of ranks");

    // Makes two groups. On several hosts, make_mesh_of_hosts(options.communicator) makes one group for each host.
    const fsdp::ProcessMesh mesh = fsdp::make_mesh(options.communicator, size / 2);
    const Outcome flat = train(options, mesh);  // FULL_SHARD over all ranks
    options.mesh = mesh;
    options.sharding_strategy = fsdp::ShardingStrategy::kHybridShard;
    const Outcome hybrid = train(options, mesh);

    if (mesh.rank() == 0) {
      std::cout << "FULL_SHARD:   " << flat.inside << " bytes inside the group, " << flat.between << " between groups\n"
                << "HYBRID_SHARD: " << hybrid.inside << " bytes inside the group, " << hybrid.between
                << " between groups\n";
    }
    require(hybrid.between < flat.between, "hybrid sharding sends less between groups");
    require(torch::allclose(hybrid.weight, flat.weight, 1e-4, 1e-6), "both train the same model");
  });
}
