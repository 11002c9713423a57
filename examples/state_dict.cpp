// State in and out of a sharded model: loads the state of a run without sharding, collects whole values on rank 0, and
// saves a checkpoint that a differently sharded model loads:
//   torchrun --no-python --nproc-per-node 2 build/state_dict
#include "fsdp/state_dict.h"

#include <filesystem>

#include "example.h"
#include "fsdp/checkpoint.h"

using namespace example;

constexpr double kLearningRate = 1e-3;

template <typename Model>
void train(Model& model, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    loss_of(model, make_input(/*rank=*/0, step)).backward();  // all ranks see the same batches here
    optimizer.step();
  }
}

int main() {
  return run([] {
    // Trains without sharding. This optimizer identifies its parameters by number.
    Net plain = make_net();
    torch::optim::AdamW plain_optimizer(plain->parameters(), kLearningRate);
    train(*plain, plain_optimizer, 0, 3);
    std::vector<std::string> names = plain->named_parameters().keys();

    // Continues the run with sharded parameters. Each rank loads its parts of the state.
    const fsdp::Options options = make_options();
    fsdp::Communicator& world = *options.communicator;
    Net net = make_net();
    const auto sharded = fsdp::fully_shard(*net, options);
    torch::optim::AdamW optimizer(sharded->parameters(), kLearningRate);
    const auto state = fsdp::state_of(optimizer);
    fsdp::FullStateDict values;
    for (const auto& item : plain->named_parameters()) values[item.key()] = item.value().detach();
    fsdp::load_full_state_dict(*sharded, *net, values);
    const auto indexed = fsdp::indexed_optimizer_state(*fsdp::state_of(plain_optimizer));
    fsdp::load_full_optimizer_state(*sharded, *state, fsdp::rekey_optimizer_state(indexed, names));
    train(*net, optimizer, 3, 6);
    train(*plain, plain_optimizer, 3, 6);

    // Gathers the values unit by unit, and collects whole tensors on rank 0 only.
    const auto full = fsdp::full_state_dict(*sharded, *net, {.rank0_only = true, .offload_to_cpu = true});
    for (const auto& item : plain->named_parameters()) {
      require(world.rank() != 0 || torch::allclose(full.at(item.key()), item.value(), 1e-4, 1e-6),
              "sharded training goes on like the other: " + item.key());
    }

    // Saves a checkpoint, and loads it into a model with other units and other names.
    const auto folder = std::filesystem::temp_directory_path() / "fsdp-example-state-dict";
    fsdp::save_checkpoint(folder, {*sharded, *net, state.get()}, R"({"step": 6})", world);
    torch::nn::Sequential outer(make_net());
    fsdp::Options one_unit;
    one_unit.communicator = options.communicator;
    one_unit.sharding_strategy = fsdp::ShardingStrategy::kShardGradOp;
    const auto other = fsdp::fully_shard(*outer, one_unit);
    const auto loaded =
        fsdp::load_checkpoint(folder, {*other, *outer}, world, {.rename = fsdp::replace_prefix("", "0.")});
    for (const auto& [name, value] : fsdp::full_state_dict(*other, *outer, {.rank0_only = true})) {
      require(torch::equal(value, full.at(name.substr(2))), "the checkpoint holds the same values: " + name);
    }
    if (world.rank() == 0) {
      std::filesystem::remove_all(folder);
      std::cout << "loaded " << loaded.model.loaded.size() << " tensors of " << loaded.user << " under other names\n";
    }
  });
}
