// A model that is too large for any single device: it is built without memory. Its initialisation is then replayed unit
// by unit into the shards, with the same values as ordinary construction:
//   torchrun --no-python --nproc-per-node 2 build/deferred_init
#include "fsdp/deferred_init.h"

#include "example.h"

using namespace example;

// Returns the whole weights of a sharded model, concatenated.
at::Tensor weights_of(fsdp::ShardedModule& sharded) {
  std::map<std::string, at::Tensor> weights;
  sharded.for_each_full_parameter(
      [&](const std::string& fqn, const at::Tensor& full) { weights[fqn] = full.flatten().clone(); });
  std::vector<at::Tensor> all;
  for (const auto& [fqn, weight] : weights) all.push_back(weight);
  return torch::cat(all);
}

// Initialises layers again, after PyTorch's own initialisation, as the transformers library does.
void init_weights(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  if (auto* linear = module.as<torch::nn::Linear>()) {
    linear->weight.normal_(0, 0.02);
    linear->bias.zero_();
  }
}

Net build() {
  Net net;
  net->apply(init_weights);
  return net;
}

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    torch::manual_seed(0);
    Net whole = build();  // a large model does not fit into memory like this
    const at::Tensor want = weights_of(*fsdp::fully_shard(whole, options));

    torch::manual_seed(0);
    Net net = fsdp::deferred_init(build);
    require(fsdp::is_deferred(net->head->weight), "parameters have shapes, and no memory");
    auto sharded = fsdp::fully_shard(net, options);
    const at::Tensor got = weights_of(*sharded);
    require(torch::equal(got, want), "the values are those of ordinary construction, to the bit");
    if (options.communicator->rank() == 0) std::cout << got.numel() << " parameters initialised in shards\n";

    // Initialises the parameters with a custom function instead of the recorded operations: unit by unit, on rank 0 for
    // all ranks.
    fsdp::Options own = options;
    own.sync_module_states = true;
    own.param_init_fn = [](torch::nn::Module& module) {
      if (auto* linear = module.as<torch::nn::Linear>()) linear->reset_parameters();
      if (auto* norm = module.as<torch::nn::LayerNorm>()) norm->reset_parameters();
    };
    Net other = fsdp::deferred_init(build);
    const at::Tensor sent = weights_of(*fsdp::fully_shard(other, own));
    require(sent.isfinite().all().item<bool>() && !torch::equal(sent, want), "rank 0's values are everyone's");

    // Leaves one part of the model unsharded. Each rank keeps that part whole.
    fsdp::Options some = options;
    Net partly = fsdp::deferred_init(build);
    some.ignored_modules = {partly->head.ptr()};
    auto rest = fsdp::fully_shard(partly, some);
    require(!fsdp::is_deferred(partly->head->weight) && partly->head->weight.numel() == 64, "the head is whole");
    require(weights_of(*rest).numel() == want.numel() - 65, "and not among the shards");
  });
}
